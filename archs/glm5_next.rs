//! GLM 5 Next: delta attention and latent attention without positions around four residual streams, which each block reads and
//! writes by weights of its own. Latent attention sees the pools of positions whose pooled keys an indexer scores highest.

arch_macros::arch! {
    name: "glm5-next";
    rope: none;

    hparams {
        eps: f32 = "attention.layer_norm_rms_epsilon";
        let is_recurrent = n_head_kv == 0;
        min_decay: f32 = "kda.gate_lower_bound" or 0.0;
        check n_rot == 0, "rope.dimension_count is 0";
        q_rank: usize = "attention.q_lora_rank";
        kv_rank: usize = "attention.kv_lora_rank";
        d_key: usize = "attention.key_length_mla";
        d_value: usize = "attention.value_length_mla";
        n_dense: usize = "leading_dense_block_count" or 0;
        n_ff_exp: [usize] = "expert_feed_forward_length";
        n_shared: usize = "expert_shared_count";
        limit_of_file: [f32] = "swiglu_clamp_shexp" or limit;
        index_heads: usize = "attention.indexer.head_count";
        index_dim: usize = "attention.indexer.key_length";
        index_eps: f32 = "attention.layer_norm_epsilon" or 0.0;
        indexes: [bool] = "attention.indexer.types" or true;
        n_pooled: usize = "attention.indexer.kpool";
        n_chosen: usize = "attention.indexer.top_k";
        with_tail: bool = "attention.indexer.kpool_select_tail" or true;
        check n_pooled > 1 && n_chosen >= n_pooled && n_chosen % n_pooled == 0,
              "attention.indexer.kpool is above 1 and divides attention.indexer.top_k";
    }

    tensors {
        use own_output;
        ignore "indexer.k_norm", "indexer.proj", "indexer.attn_k", "indexer.attn_q_b";
        ignore "indexer_compressor_gate", "indexer_compressor_ape";

        layer {
            attn_norm, ffn_norm: vector [n_embd];
            use hyper_connections, activation_limits;
            if is_recurrent {
                use delta_attention, low_rank_decay, low_rank_gate;
            } else {
                q_a:       linear   "attn_q_a"       [n_embd -> q_rank];
                q_a_norm:  vector   "attn_q_a_norm"  [q_rank];
                q_b:       linear   "attn_q_b"       [q_rank -> n_head * d_key];
                k_b:       per_head "attn_k_b"       [d_key -> kv_rank; n_head];
                kv_a:      linear   "attn_kv_a_mqa"  [n_embd -> kv_rank];
                kv_a_norm: vector   "attn_kv_a_norm" [kv_rank];
                v_b:       per_head "attn_v_b"       [kv_rank -> d_value; n_head];
                wo:        linear   "attn_output"    [n_head * d_value -> n_embd];
                if indexes {
                    index_q:      linear "indexer.attn_q_b"        [q_rank -> index_heads * index_dim];
                    index_k:      linear "indexer.attn_k"          [n_embd -> index_dim];
                    index_k_norm: norm   "indexer.k_norm"          [index_dim];
                    index_proj:   linear "indexer.proj"            [n_embd -> index_heads];
                    pool_gate:    linear "indexer_compressor_gate" [n_embd -> index_dim];
                    pool_place:   vector "indexer_compressor_ape"  [index_dim, n_pooled];
                }
            }
            if il < n_dense {
                use gated_ffn;
            } else {
                use selected_experts(usual_gating = 2), shared_experts(width = n_ff_exp * n_shared);
            }
        }
    }

    fn attend_latent(h) {
        let compressed = rms_norm(q_a(h), q_a_norm, eps);
        let q = k_b(heads(q_b(compressed), n_head));
        let k = heads(rms_norm(kv_a(h), kv_a_norm, eps), 1);
        let found = attention(q, k, v_in_k = kv_rank, scale = 1.0 / sqrt(d_key), selection = selected(h, compressed));
        wo(merge(v_b(heads(found, n_head))))
    }

    // A pool's key is a mean of its tokens', weighted channel by channel.
    fn selected(h, compressed) {
        if indexes {
            let kept = concat(layer_norm(index_k(h), index_k_norm, index_eps), pool_gate(h));
            let pool = last_tokens(kept, n_pooled);
            let key = sum_heads(pool[..index_dim] * softmax_heads(pool[index_dim..] + pool_place));
            let q = heads(index_q(compressed), index_heads);
            index_pools(q, heads(key, 1), index_proj(h), n_chosen, n_pooled, with_tail)
        } else {
            rust!([n_chosen, T] => b.indexed_cells())
        }
    }

    fn limited(gate, up) {
        silu(clamp(gate, -3e38, limit_shexp)) * clamp(up, -limit_shexp, limit_shexp)
    }

    graph {
        let x = repeat_heads(heads(token_embd[tokens], 1), n_stream);
        for layer {
            let weights = attn_streams(rms_norm(merge(x), eps));
            let h = rms_norm(read(x, weights, attn_base, attn_scale), attn_norm, eps);
            let y = if is_recurrent {
                let decay = decays(h, heads(a, n_head_max), bound = min_decay);
                wy(opened(h) * remember(h, decay, l2_eps = 0.000001))
            } else {
                attend_latent(h)
            };
            x = write(x, y, weights, attn_base, attn_scale);

            let weights = ffn_streams(rms_norm(merge(x), eps));
            let h = rms_norm(read(x, weights, ffn_base, ffn_scale), ffn_norm, eps);
            let y = if il < n_dense {
                down(limited(gate(h), up(h)))
            } else {
                chosen(h, limit = limit) + down_shexp(limited(gate_shexp(h), up_shexp(h)))
            };
            x = write(x, y, weights, ffn_base, ffn_scale);
        }
        output(rms_norm(sum_heads(x) / n_stream, output_norm, eps))
    }

    test {
        n_embd: 128, n_head: 1, n_layer: 2, n_ff: 192, n_vocab: 128, n_expert: 2, n_expert_used: 2, d_key: 192, d_value: 128,
        kv_rank: 512, q_rank: 512, d_conv: 4, d_kda: 128, n_ff_exp: 192, n_shared: 1, n_stream: 4, n_balance: 2, n_pooled: 4,
        n_chosen: 8, index_heads: 64, index_dim: 128, n_rot: 0
    }
}
