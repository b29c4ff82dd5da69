//! Kimi Linear: most layers remember by a delta rule whose decay differs by channel, the others attend to a latent vector
//! without positions. Experts are selected with a bias, beside shared ones.

arch_macros::arch! {
    name: "kimi-linear";
    rope: none;

    hparams {
        eps: f32 = "attention.layer_norm_rms_epsilon";
        let is_recurrent = n_head_kv == 0;
        n_dense: usize = "leading_dense_block_count" or 0;
        n_ff_exp: [usize] = "expert_feed_forward_length";
        n_shared: usize = "expert_shared_count";
        weights_scale: f32 = "expert_weights_scale" or 1.0;
        gating_func: usize = "expert_gating_func";
        check gating_func <= 4, "expert_gating_func is one of 1 to 4";
        n_group: usize = "expert_group_count" or 1;
        n_group_used: usize = "expert_group_used_count" or 1;
        check n_group <= 1 || n_group_used > 0, "expert_group_used_count is 0, but expert_group_count is not";
    }

    tensors {
        use own_output;

        layer {
            attn_norm, ffn_norm: vector [n_embd];
            if is_recurrent {
                use delta_attention;
                decay_a: linear "ssm_f_a"     [n_embd -> d_kda];
                decay_b: linear "ssm_f_b"     [d_kda -> n_head_max * d_kda];
                dt_bias: raw    "ssm_dt.bias" [n_head_max * d_kda];
                a:       raw    "ssm_a"       [1, n_head_max];
                gate_a:  linear "ssm_g_a"     [n_embd -> d_kda];
                gate_b:  linear "ssm_g_b"     [d_kda -> n_head_max * d_kda];
            } else {
                use latent_attention;
            }
            if il < n_dense {
                use gated_ffn;
            } else {
                use experts(width = n_ff_exp);
                probs_bias: raw "exp_probs_b.bias" [n_expert];
                use shared_experts(width = n_ff_exp * max(n_shared, 1));
            }
        }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            let h = rms_norm(x, attn_norm, eps);
            if is_recurrent {
                let decay = heads(softplus(decay_b(decay_a(h)) + dt_bias), n_head_max) * a;
                x += wy(sigmoid(gate_b(gate_a(h))) * remember(h, decay));
            } else {
                x += wo(attend_latent(h));
            }
            let h = rms_norm(x, ffn_norm, eps);
            if il < n_dense {
                x += ffn(h);
            } else {
                x += routed(h, gating = gating_func, scale = weights_scale, selection_bias = probs_bias,
                            n_groups = n_group, n_groups_used = n_group_used)
                     + shared(h);
            }
        }
        output(rms_norm(x, output_norm, eps))
    }

    test {
        n_embd: 128, n_head: 1, n_layer: 2, n_ff: 192, n_vocab: 128, n_expert: 2, n_expert_used: 2, d_key: 192, d_value: 128,
        kv_rank: 512, d_conv: 4, d_kda: 128, n_ff_exp: 192, n_shared: 1, gating_func: 2
    }
}
