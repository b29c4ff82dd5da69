//! GLM 5 Next: layers of delta attention and of latent attention without positions, connected by
//! hyper-connections over four residual streams. In latent attention, an indexer selects pools of positions
//! by their pooled keys.

arch_macros::arch! {
    name: "glm5-next";
    rope: none;

    hparams {
        let is_recurrent = n_head_kv == 0;
        min_decay: f32 = "kda.gate_lower_bound" or 0.0;
        check n_rot == 0, "rope.dimension_count must be 0";
        n_dense: usize = "leading_dense_block_count" or 0;
        n_ff_exp: [usize] = "expert_feed_forward_length";
        n_shared: usize = "expert_shared_count";
        limit_of_file: [f32] = "swiglu_clamp_shexp" or limit;
        index_heads: usize = "attention.indexer.head_count";
        index_dim: usize = "attention.indexer.key_length";
        layer_norm_eps: f32 = "attention.layer_norm_epsilon" or 0.0; // of the indexer
        indexes: [bool] = "attention.indexer.types" or true;
        n_pooled: usize = "attention.indexer.kpool";
        n_chosen: usize = "attention.indexer.top_k";
        with_tail: bool = "attention.indexer.kpool_select_tail" or true;
        check n_pooled > 1 && n_chosen >= n_pooled && n_chosen % n_pooled == 0,
              "attention.indexer.kpool must be greater than 1 and divide attention.indexer.top_k";
    }

    tensors {
        use untied_output;
        ignore "indexer.k_norm", "indexer.proj", "indexer.attn_k", "indexer.attn_q_b";
        ignore "indexer_compressor_gate", "indexer_compressor_ape";

        layer {
            attn_norm, ffn_norm: vector [n_embd];
            use hyper_connections, activation_limits;
            if is_recurrent {
                use kimi_delta_attention, low_rank_kda_decay, low_rank_kda_gate;
            } else {
                use latent_attention(low_rank_queries = true);
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
                use selected_experts(default_gating = 2), shared_experts(width = n_ff_exp * n_shared);
            }
        }
    }

    fn attend(h) {
        let compressed = compressed_queries(h);
        let cells = selected(h, compressed);
        wo(merge(attend_latent_heads(h, heads(q_b(compressed), n_head), rotated = false, selection = cells)))
    }

    // The key of a pool is a weighted mean of its tokens' keys, with weights per channel.
    fn selected(h, compressed) {
        if indexes {
            let kept = concat(layer_norm(index_k(h), index_k_norm), pool_gate(h));
            let pool = last_tokens(kept, n_pooled);
            let key = sum_heads(pool[..index_dim] * softmax_heads(pool[index_dim..] + pool_place));
            let q = heads(index_q(compressed), index_heads);
            index_pools(q, heads(key, 1), index_proj(h), n_chosen, n_pooled, with_tail)
        } else {
            shared_selection(n_chosen)
        }
    }

    fn limited_glu(gate, up) {
        silu(clamp(gate, -3e38, limit_shexp)) * clamp(up, -limit_shexp, limit_shexp)
    }

    graph {
        let x = repeat_heads(heads(with_media(token_embd[tokens]), 1), n_stream);
        for layer {
            let weights = attn_streams(rms_norm(merge(x)));
            let h = rms_norm(hc_pre(x, weights, attn_base, attn_scale), attn_norm);
            let y = if is_recurrent {
                let decay = kda_decay(h, heads(a, n_head_max), bound = min_decay);
                wy(kda_gate(h) * kda(h, decay, l2_eps = 0.000001))
            } else {
                attend(h)
            };
            x = hc_post(x, y, weights, attn_base, attn_scale);

            let weights = ffn_streams(rms_norm(merge(x)));
            let h = rms_norm(hc_pre(x, weights, ffn_base, ffn_scale), ffn_norm);
            let y = if il < n_dense {
                down(limited_glu(gate(h), up(h)))
            } else {
                selected_experts(h, limit = limit) + down_shexp(limited_glu(gate_shexp(h), up_shexp(h)))
            };
            x = hc_post(x, y, weights, ffn_base, ffn_scale);
        }
        output(rms_norm(sum_heads(x) / n_stream, output_norm))
    }

    test {
        n_embd: 128, n_head: 1, n_layer: 2, n_ff: 192, n_vocab: 128, n_expert: 2, n_expert_used: 2, key_length_mla: 192,
        value_length_mla: 128,
        kv_rank: 512, q_rank: 512, d_conv: 4, d_kda: 128, n_ff_exp: 192, n_shared: 1, n_stream: 4, n_sinkhorn: 2, n_pooled: 4,
        n_chosen: 8, index_heads: 64, index_dim: 128, n_rot: 0
    }
}
