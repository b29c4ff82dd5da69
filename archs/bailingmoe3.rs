//! Ling 3: Kimi Linear with a bounded decay and gates of one matrix, gated attention with rotations, and limited experts.

arch_macros::arch! {
    name: "bailingmoe3";
    like: "kimi-linear";
    rope: norm;

    hparams {
        q_lora: usize = "attention.q_lora_rank" or 0;
        safe_gate: bool = "kda.safe_gate" or true;
        check safe_gate, "kda.safe_gate is true";
        min_decay: f32 = "kda.gate_lower_bound";
        check min_decay < 0.0, "kda.gate_lower_bound is negative";
        n_ff_shexp: [usize] = "expert_shared_feed_forward_length" or n_ff_exp * max(n_shared, 1);
        norm_weights: bool = "expert_weights_norm" or false;
        limit: [f32] = "swiglu_clamp_exp" or 0.0;
        limit_shexp: [f32] = "swiglu_clamp_shexp" or 0.0;
        let max_shexp = if limit_shexp > 0.000001 { limit_shexp } else { 3e38 };
    }

    tensors {
        output: linear "output" [n_embd -> n_vocab] or token_embd;

        layer {
            without decay_b, gate_b;
            if is_recurrent {
                decay_a: linear "ssm_f_a" [n_embd -> n_head_max * d_kda];
                gate_a:  linear "ssm_g_a" [n_embd -> n_head_max * d_kda];
            } else {
                if q_lora > 0 {
                    wq_a:   linear "attn_q_a"      [n_embd -> q_lora];
                    q_norm: vector "attn_q_a_norm" [q_lora];
                    wq_b:   linear "attn_q_b"      [q_lora -> n_head * q_head];
                } else {
                    wq_mla: linear "attn_q" [n_embd -> n_head * q_head];
                }
                attn_gate: linear "attn_gate" [n_embd -> n_head];
            }
        }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            let h = rms_norm(x, attn_norm, eps);
            if is_recurrent {
                let q = heads(silu(short_conv(wq(h), q_conv)), n_head_max);
                let k = heads(silu(short_conv(wk(h), k_conv)), n_head_max);
                let v = heads(silu(short_conv(wv(h), v_conv)), n_head_max);
                let decay = sigmoid(heads(decay_a(h) + dt_bias, n_head_max) * a) * min_decay;
                let y = linear_attention(rms_norm(q, eps / d_kda) / sqrt(d_kda), rms_norm(k, eps / d_kda) / sqrt(d_kda), v,
                                         decay = decay, beta = heads(sigmoid(beta(h)), n_head_max), delta = true);
                x += wy(sigmoid(gate_a(h)) * merge(rms_norm(y, y_norm, eps)));
            } else {
                let q = if q_lora > 0 { wq_b(rms_norm(wq_a(h), q_norm, eps)) } else { wq_mla(h) };
                let q = heads(q, n_head);
                let kv = wkv_a(h);
                let q = concat(wk_b(q[..nope]), rope(q[nope..]));
                let latent = heads(rms_norm(kv[..kv_lora], kv_norm, eps), 1);
                let k = concat(latent, rope(heads(kv[kv_lora..], 1)));
                let y = wv_b(heads(attention(q, k, v_in_k = kv_lora, scale = 1.0 / sqrt(q_head)), n_head));
                x += wo(merge(y * heads(sigmoid(attn_gate(h)), n_head)));
            }
            let h = rms_norm(x, ffn_norm, eps);
            if il < n_dense {
                x += down(silu(gate(h)) * up(h));
            } else {
                let shared = clamp(silu(gate_shexp(h)), -3e38, max_shexp) * clamp(up_shexp(h), -max_shexp, max_shexp);
                x += moe(h, router = router(h), gate = gate_exps, up = up_exps, down = down_exps, act = silu,
                         gating = gating_func, n_used = n_expert_used, norm_weights = norm_weights, scale = weights_scale,
                         selection_bias = probs_bias, act_limit = limit)
                     + down_shexp(shared);
            }
        }
        output(rms_norm(x, output_norm, eps))
    }

    test {
        n_embd: 128, n_head: 1, n_layer: 2, n_ff: 192, n_vocab: 128, n_expert: 2, n_expert_used: 2, q_head: 192, v_head: 128,
        kv_lora: 512, q_lora: 512, d_conv: 4, d_kda: 128, n_ff_exp: 192, n_shared: 1, gating_func: 2
    }
}
