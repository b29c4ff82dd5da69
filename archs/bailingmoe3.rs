//! Ling 3: layers of Kimi delta attention with bounded decays alternate with gated multi-head latent
//! attention with rotary positions. Experts with clamped activations.

arch_macros::arch! {
    name: "bailingmoe3";
    rope: norm or mrope;

    hparams {
        let is_recurrent = n_head_kv == 0;
        safe_gate: bool = "kda.safe_gate" or true;
        min_decay: f32 = "kda.gate_lower_bound";
        check safe_gate && min_decay < 0.0, "kda.safe_gate must be true and kda.gate_lower_bound negative";
        n_dense: usize = "leading_dense_block_count";
        n_ff_exp: [usize] = "expert_feed_forward_length";
        n_shared: usize = "expert_shared_count";
        n_ff_of_file: usize = "expert_shared_feed_forward_length" or 0;
        let n_ff_shexp = if n_ff_of_file > 0 { n_ff_of_file } else { n_ff_exp * max(n_shared, 1) };
    }

    tensors {
        use tied_output;

        layer {
            attn_norm, ffn_norm: vector [n_embd];
            use activation_limits;
            if is_recurrent {
                use kimi_delta_attention;
                wdecay:  linear "ssm_f_a"     [n_embd -> n_head_max * d_kda];
                dt_bias: raw    "ssm_dt.bias" [n_head_max * d_kda];
                a:       raw    "ssm_a"       [1, n_head_max];
                y_gate:  linear "ssm_g_a"     [n_embd -> n_head_max * d_kda];
            } else {
                use latent_attention;
                attn_gate: linear "attn_gate" [n_embd -> n_head];
            }
            if il < n_dense {
                use gated_ffn;
            } else {
                use selected_experts, shared_experts(width = n_ff_shexp);
            }
        }
    }

    graph {
        let x = with_media(token_embd[tokens]);
        for layer {
            let h = rms_norm(x, attn_norm);
            if is_recurrent {
                let decay = sigmoid(heads(wdecay(h) + dt_bias, n_head_max) * a) * min_decay;
                x += wy(sigmoid(y_gate(h)) * kda(h, decay));
            } else {
                x += wo(merge(attend_latent_heads(h, latent_queries(h)) * heads(sigmoid(attn_gate(h)), n_head)));
            }
            let h = rms_norm(x, ffn_norm);
            if il < n_dense {
                x += down(limited_glu(gate(h), up(h)));
            } else {
                x += selected_experts(h, act_limit = limit) + down_shexp(limited_glu(gate_shexp(h), up_shexp(h)));
            }
        }
        output(rms_norm(x, output_norm))
    }

    test {
        n_embd: 128, n_head: 1, n_layer: 2, n_ff: 192, n_vocab: 128, n_expert: 2, n_expert_used: 2, key_length_mla: 192,
        value_length_mla: 128, kv_rank: 512, d_conv: 4, d_kda: 128, n_dense: 1, n_ff_exp: 192, n_shared: 1, min_decay: -5.0
    }
}
