//! Kimi Linear: most layers use a delta rule with a decay per channel, the others multi-head latent attention without
//! positions. Experts are selected with a bias, and shared experts are always used.

arch_macros::arch! {
    name: "kimi-linear";
    rope: none;

    hparams {
        let is_recurrent = n_head_kv == 0;
        n_dense: usize = "leading_dense_block_count" or 0;
        n_ff_exp: [usize] = "expert_feed_forward_length";
        n_shared: usize = "expert_shared_count";
        gating_func: usize = "expert_gating_func";
        let norm_weights = true;
    }

    tensors {
        use untied_output;

        layer {
            attn_norm, ffn_norm: vector [n_embd];
            if is_recurrent {
                use kimi_delta_attention, low_rank_kda_decay, low_rank_kda_gate;
                override a: raw "ssm_a" [1, n_head_max];
            } else {
                use latent_attention;
            }
            if il < n_dense {
                use gated_ffn;
            } else {
                use selected_experts, shared_experts(width = n_ff_exp * max(n_shared, 1));
            }
        }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            let h = rms_norm(x, attn_norm);
            if is_recurrent {
                x += wy(kda_gate(h) * kda(h, kda_decay(h, a)));
            } else {
                x += attend_latent(h, rotated = false);
            }
            let h = rms_norm(x, ffn_norm);
            x += if il < n_dense { ffn(h) } else { selected_experts(h) + shared_experts(h) };
        }
        output(rms_norm(x, output_norm))
    }

    test {
        n_embd: 128, n_head: 1, n_layer: 2, n_ff: 192, n_vocab: 128, n_expert: 2, n_expert_used: 2, key_length_mla: 192,
        value_length_mla: 128, kv_rank: 512, d_conv: 4, d_kda: 128, n_ff_exp: 192, n_shared: 1, gating_func: 2
    }
}
