//! Kimi Linear: most layers remember by a delta rule whose decay differs by channel, behind short convolutions; the others attend
//! by a shared latent key without positions. Experts with a bias for their selection beside shared ones.

arch_macros::arch! {
    name: "kimi-linear";
    rope: none;

    hparams {
        eps: f32 = "attention.layer_norm_rms_epsilon";
        q_head: usize = "attention.key_length_mla";
        v_head: usize = "attention.value_length_mla";
        kv_lora: usize = "attention.kv_lora_rank";
        let nope = q_head - n_rot;
        d_conv: usize = "ssm.conv_kernel";
        d_kda: usize = "kda.head_dim";
        let is_recurrent = n_head_kv == 0;
        n_dense: usize = "leading_dense_block_count" or 0;
        n_ff_exp: [usize] = "expert_feed_forward_length";
        n_shared: usize = "expert_shared_count";
        let n_ff_shexp = n_ff_exp * max(n_shared, 1);
        weights_scale: f32 = "expert_weights_scale" or 1.0;
        gating_func: usize = "expert_gating_func";
        check gating_func <= 4, "expert_gating_func is one of 1 to 4";
    }

    tensors {
        token_embd:  embed  "token_embd"  [n_embd, n_vocab];
        output_norm: vector "output_norm" [n_embd];
        output:      linear "output"      [n_embd -> n_vocab];

        layer {
            attn_norm: vector "attn_norm" [n_embd];
            ffn_norm:  vector "ffn_norm"  [n_embd];
            if is_recurrent {
                wq:      linear "attn_q"       [n_embd -> n_head_max * d_kda];
                wk:      linear "attn_k"       [n_embd -> n_head_max * d_kda];
                wv:      linear "attn_v"       [n_embd -> n_head_max * d_kda];
                q_conv:  vector "ssm_conv1d_q" [d_conv, 1, n_head_max * d_kda];
                k_conv:  vector "ssm_conv1d_k" [d_conv, 1, n_head_max * d_kda];
                v_conv:  vector "ssm_conv1d_v" [d_conv, 1, n_head_max * d_kda];
                decay_a: linear "ssm_f_a"      [n_embd -> d_kda];
                decay_b: linear "ssm_f_b"      [d_kda -> n_head_max * d_kda];
                dt_bias: raw    "ssm_dt.bias"  [n_head_max * d_kda];
                a:       raw    "ssm_a"        [1, n_head_max];
                beta:    linear "ssm_beta"     [n_embd -> n_head_max];
                gate_a:  linear "ssm_g_a"      [n_embd -> d_kda];
                gate_b:  linear "ssm_g_b"      [d_kda -> n_head_max * d_kda];
                y_norm:  vector "ssm_norm"     [d_kda];
                wy:      linear "attn_output"  [n_head_max * d_kda -> n_embd];
            } else {
                wq_mla:   linear   "attn_q"         [n_embd -> n_head * q_head];
                wkv_a:    linear   "attn_kv_a_mqa"  [n_embd -> kv_lora + n_rot];
                kv_norm:  vector   "attn_kv_a_norm" [kv_lora];
                wk_b:     per_head "attn_k_b"       [nope -> kv_lora; n_head];
                wv_b:     per_head "attn_v_b"       [kv_lora -> v_head; n_head];
                wo:       linear   "attn_output"    [n_head * v_head -> n_embd];
            }
            if il < n_dense {
                gate: linear "ffn_gate" [n_embd -> n_ff];
                up:   linear "ffn_up"   [n_embd -> n_ff];
                down: linear "ffn_down" [n_ff -> n_embd];
            } else {
                router:     linear  "ffn_gate_inp"     [n_embd -> n_expert];
                probs_bias: raw     "exp_probs_b.bias" [n_expert];
                gate_exps:  experts "ffn_gate_exps"    [n_embd -> n_ff_exp; n_expert];
                up_exps:    experts "ffn_up_exps"      [n_embd -> n_ff_exp; n_expert];
                down_exps:  experts "ffn_down_exps"    [n_ff_exp -> n_embd; n_expert];
                gate_shexp: linear  "ffn_gate_shexp"   [n_embd -> n_ff_shexp];
                up_shexp:   linear  "ffn_up_shexp"     [n_embd -> n_ff_shexp];
                down_shexp: linear  "ffn_down_shexp"   [n_ff_shexp -> n_embd];
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
                let decay = heads(softplus(decay_b(decay_a(h)) + dt_bias), n_head_max) * a;
                let y = linear_attention(rms_norm(q, eps / d_kda) / sqrt(d_kda), rms_norm(k, eps / d_kda) / sqrt(d_kda), v,
                                         decay = decay, beta = heads(sigmoid(beta(h)), n_head_max), delta = true);
                x += wy(sigmoid(gate_b(gate_a(h))) * merge(rms_norm(y, y_norm, eps)));
            } else {
                let q = heads(wq_mla(h), n_head);
                let kv = wkv_a(h);
                let q = concat(wk_b(q[..nope]), q[nope..]);
                let k = concat(rms_norm(kv[..kv_lora], kv_norm, eps), kv[kv_lora..]);
                let y = attention(q, heads(k, 1), v_in_k = kv_lora, scale = 1.0 / sqrt(q_head));
                x += wo(merge(wv_b(heads(y, n_head))));
            }
            let h = rms_norm(x, ffn_norm, eps);
            if il < n_dense {
                x += down(silu(gate(h)) * up(h));
            } else {
                x += moe(h, router = router(h), gate = gate_exps, up = up_exps, down = down_exps, act = silu,
                         gating = gating_func, n_used = n_expert_used, norm_weights = true, scale = weights_scale,
                         selection_bias = probs_bias)
                     + down_shexp(silu(gate_shexp(h)) * up_shexp(h));
            }
        }
        output(rms_norm(x, output_norm, eps))
    }

    test {
        n_embd: 128, n_head: 1, n_layer: 2, n_ff: 192, n_vocab: 128, n_expert: 2, n_expert_used: 2, q_head: 192, v_head: 128,
        kv_lora: 512, d_conv: 4, d_kda: 128, n_ff_exp: 192, n_shared: 1, gating_func: 2
    }
}
