//! Dots 3: multi-head latent attention with a gate per head and two kinds of layers. Sliding-window layers
//! have their own head sizes and latent rank; in the other layers, an indexer selects the cells to attend to.

arch_macros::arch! {
    name: "dots3note";
    rope: norm;

    hparams {
        n_dense: usize = "leading_dense_block_count";
        n_ff_exp: [usize] = "expert_feed_forward_length";
        n_shared: usize = "expert_shared_count";
        gating_func: usize = "expert_gating_func";
        rope_base_swa: f32 = "rope.freq_base_swa";
        kv_rank_full: usize = "attention.kv_lora_rank";
        kv_rank_swa: usize = "attention.kv_lora_rank_swa";
        let kv_rank = if is_swa { kv_rank_swa } else { kv_rank_full };
        key_length_mla: usize = "attention.key_length_mla";
        key_length_swa: usize = "attention.key_length_mla_swa";
        let mla_head_dim_k = if is_swa { key_length_swa } else { key_length_mla };
        value_length_mla: usize = "attention.value_length_mla";
        value_length_swa: usize = "attention.value_length_mla_swa";
        let mla_head_dim_v = if is_swa { value_length_swa } else { value_length_mla };
        check mla_head_dim_k > n_rot, "attention.key_length_mla and attention.key_length_mla_swa must be greater than rope.dimension_count";
        check n_selected > 0, "attention.indexer.top_k must be at least 1";
        check n_rot <= index_dim, "attention.indexer.key_length must be at least rope.dimension_count";
        indexes: [bool] = "attention.indexer.types";
        check is_swa != indexes,
              "attention.indexer.types must select exactly the layers without a window in attention.sliding_window_pattern";
    }

    tensors {
        use tied_output, sliding_window(kind = [bool]);

        layer {
            attn_norm, ffn_norm: vector [n_embd];
            use latent_attention(low_rank_queries = true);
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

    fn norm_k_rot(k) {
        rms_norm(k, k_norm)
    }

    graph {
        let x = with_media(token_embd[tokens]);
        for layer {
            let h = rms_norm(x, attn_norm);
            let compressed = compressed_queries(h);
            let y = attend_latent_heads(h, heads(q_b(compressed), n_head), base = rope_base, window = sliding(n_swa, is_swa),
                                        selection = if indexes { select_cells(h, compressed, neox = true) });
            x += wo(merge(y * heads(sigmoid(head_gate(h)), n_head)));
            let h = rms_norm(x, ffn_norm);
            x += if il < n_dense { ffn(h) } else { selected_experts(h) + shared_experts(h) };
        }
        output(rms_norm(x, output_norm))
    }

    test {
        n_embd: 128, n_head: 1, n_layer: 2, n_ff: 192, n_vocab: 128, n_dense: 1, n_ff_exp: 192, n_shared: 1, n_expert: 2, n_expert_used: 2,
        gating_func: 2, n_swa: 32, q_rank: 512, kv_rank_full: 512, kv_rank_swa: 512, key_length_mla: 192, key_length_swa: 192,
        value_length_mla: 128, value_length_swa: 128, index_heads: 64, index_dim: 128, n_selected: 16
    }
}
