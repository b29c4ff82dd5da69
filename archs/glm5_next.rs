//! GLM 5 Next: delta attention and latent attention without positions around four residual streams, which each block reads and
//! writes by weights of its own. Contexts end where latent attention would start to leave cells out.

arch_macros::arch! {
    name: "glm5-next";
    rope: none;

    hparams {
        eps: f32 = "attention.layer_norm_rms_epsilon";
        let is_recurrent = n_head_kv == 0;
        min_decay: f32 = "kda.gate_lower_bound" or 0.0;
        check n_rot == 0, "rope.dimension_count is 0";
        n_dense: usize = "leading_dense_block_count" or 0;
        n_ff_exp: [usize] = "expert_feed_forward_length";
        n_shared: usize = "expert_shared_count";
        limit: [f32] = "swiglu_clamp_exp" or 0.0;
        limit_of_file: [f32] = "swiglu_clamp_shexp" or limit;
        let limit_shexp = if limit_of_file > 0.000001 { limit_of_file } else { 3e38 };
        n_pooled: usize = "attention.indexer.kpool";
        n_chosen: usize = "attention.indexer.top_k";
        with_tail: bool = "attention.indexer.kpool_select_tail" or true;
        check n_pooled > 1 && n_chosen % n_pooled == 0 && with_tail,
              "attention.indexer.kpool is above 1 and divides attention.indexer.top_k, and attention.indexer.kpool_select_tail is true";
    }

    tensors {
        use own_output;

        layer {
            attn_norm, ffn_norm: vector [n_embd];
            use hyper_connections;
            if is_recurrent {
                use delta_attention;
                decay_a: linear "ssm_f_a"     [n_embd -> d_kda];
                decay_b: linear "ssm_f_b"     [d_kda -> n_head_max * d_kda];
                dt_bias: raw    "ssm_dt.bias" [n_head_max * d_kda];
                a:       raw    "ssm_a"       [n_head_max];
                gate_a:  linear "ssm_g_a"     [n_embd -> d_kda];
                gate_b:  linear "ssm_g_b"     [d_kda -> n_head_max * d_kda];
            } else {
                use latent_attention;
                // They choose among more cells than a context here has.
                ignore "indexer.k_norm", "indexer.proj", "indexer.attn_k", "indexer.attn_q_b";
                ignore "indexer_compressor_gate", "indexer_compressor_ape";
            }
            if il < n_dense {
                use gated_ffn;
            } else {
                use experts(width = n_ff_exp);
                use expert_routing(usual_gating = 2);
                probs_bias: raw "exp_probs_b.bias" [n_expert];
                use shared_experts(width = n_ff_exp * n_shared);
            }
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
                let decay = decay_b(decay_a(h)) + dt_bias;
                let rate = heads(a, n_head_max);
                let decay = if min_decay < 0.0 {
                    sigmoid(heads(decay, n_head_max) * -rate) * min_decay
                } else {
                    heads(softplus(decay), n_head_max) * rate
                };
                wy(sigmoid(gate_b(gate_a(h))) * remember(h, decay, l2_eps = 0.000001))
            } else {
                wo(attend_latent_only(h, up_to = n_chosen))
            };
            x = write(x, y, weights, attn_base, attn_scale);

            let weights = ffn_streams(rms_norm(merge(x), eps));
            let h = rms_norm(read(x, weights, ffn_base, ffn_scale), ffn_norm, eps);
            let y = if il < n_dense {
                down(limited(gate(h), up(h)))
            } else {
                routed(h, gating = gating, norm_weights = norm_weights, scale = weights_scale, selection_bias = probs_bias,
                       n_groups = n_group, n_groups_used = n_group_used, limit = limit)
                    + down_shexp(limited(gate_shexp(h), up_shexp(h)))
            };
            x = write(x, y, weights, ffn_base, ffn_scale);
        }
        output(rms_norm(sum_heads(x) / n_stream, output_norm, eps))
    }

    test {
        n_embd: 128, n_head: 1, n_layer: 2, n_ff: 192, n_vocab: 128, n_expert: 2, n_expert_used: 2, d_key: 192, d_value: 128,
        kv_rank: 512, q_rank: 512, d_conv: 4, d_kda: 128, n_ff_exp: 192, n_shared: 1, n_stream: 4, n_balance: 2, n_pooled: 4,
        n_chosen: 4096
    }
}
