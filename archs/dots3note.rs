//! Dots 3: multi-head latent attention with the head gates and the two kinds of layers of its own: those with a sliding window have other
//! head sizes and another rank, the others attend to the cells that an indexer chooses.

arch_macros::arch! {
    name: "dots3note";
    rope: norm;

    hparams {
        eps: f32 = "attention.layer_norm_rms_epsilon";
        n_dense: usize = "leading_dense_block_count";
        n_ff_exp: [usize] = "expert_feed_forward_length";
        n_shared: usize = "expert_shared_count";
        gating_func: usize = "expert_gating_func";
        n_swa: usize = "attention.sliding_window";
        windowed: [bool] = "attention.sliding_window_pattern";
        rope_base_swa: f32 = "rope.freq_base_swa";
        let rope_base = if windowed { rope_base_swa } else { rope_freq_base };
        q_rank: usize = "attention.q_lora_rank";
        kv_rank_full: usize = "attention.kv_lora_rank";
        kv_rank_swa: usize = "attention.kv_lora_rank_swa";
        let kv_rank = if windowed { kv_rank_swa } else { kv_rank_full };
        dk_full: usize = "attention.key_length_mla";
        dk_swa: usize = "attention.key_length_mla_swa";
        let dk = if windowed { dk_swa } else { dk_full };
        dv_full: usize = "attention.value_length_mla";
        dv_swa: usize = "attention.value_length_mla_swa";
        let dv = if windowed { dv_swa } else { dv_full };
        check dk > n_rot, "attention.key_length_mla and attention.key_length_mla_swa are more than rope.dimension_count";
        let n_nope = dk - n_rot;
        check n_selected > 0, "attention.indexer.top_k is at least 1";
        check n_rot <= index_dim, "attention.indexer.key_length is at least rope.dimension_count";
        indexes: [bool] = "attention.indexer.types";
        check windowed != indexes, "attention.indexer.types names the layers without a sliding window";
    }

    tensors {
        use tied_output;

        layer {
            attn_norm, ffn_norm: vector [n_embd];
            use latent_projections;
            k_norm:    vector "attn_k_norm" [n_rot];
            head_gate: linear "attn_gate"   [n_embd -> n_head];
            if indexes {
                use indexer;
            }
            if il < n_dense {
                use gated_ffn;
            } else {
                use selected_experts, shared_experts(width = n_ff_exp * n_shared);
            }
        }
    }

    fn rotating(k) {
        rms_norm(k, k_norm, eps)
    }

    fn selected(h, compressed) {
        let q = rope(heads(index_q(compressed), index_heads), halves = true);
        let k = layer_norm(index_k(h), index_k_norm, 0.000001);
        index_cells(q, rope(heads(k, 1), halves = true), index_proj(h), n_selected)
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            let h = rms_norm(x, attn_norm, eps);
            let compressed = compressed_queries(h);
            let q = latent_queries(compressed, base = rope_base);
            let k = latent_keys(h, base = rope_base);
            let found = if indexes {
                attention(q, k, v_in_k = kv_rank, scale = 1.0 / sqrt(dk), selection = selected(h, compressed))
            } else {
                attention(q, k, v_in_k = kv_rank, scale = 1.0 / sqrt(dk), window = standard(n_swa, windowed))
            };
            let opening = heads(sigmoid(head_gate(h)), n_head);
            x += wo(merge(v_b(heads(found, n_head)) * opening));
            let h = rms_norm(x, ffn_norm, eps);
            x += if il < n_dense { ffn(h) } else { chosen(h) + shared(h) };
        }
        output(rms_norm(x, output_norm, eps))
    }

    test {
        n_embd: 128, n_head: 1, n_layer: 2, n_ff: 192, n_vocab: 128, n_dense: 1, n_ff_exp: 192, n_shared: 1, n_expert: 2, n_expert_used: 2,
        gating_func: 2, n_swa: 32, q_rank: 512, kv_rank_full: 512, kv_rank_swa: 512, dk_full: 192, dk_swa: 192, dv_full: 128, dv_swa: 128,
        index_heads: 64, index_dim: 128, n_selected: 16
    }
}
