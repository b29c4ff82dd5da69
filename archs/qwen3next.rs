//! Qwen3-Next: most layers remember by a gated delta rule behind a short convolution, every fourth attends with gated heads;
//! experts beside a shared one behind a gate.

arch_macros::arch! {
    name: "qwen3next";
    rope: neox;

    hparams {
        eps: f32 = "attention.layer_norm_rms_epsilon";
        interval: usize = "full_attention_interval" or 4;
        is_recurrent: [bool] = "attention.recurrent_layers" or (il + 1) % interval != 0;
        d_conv: usize = "ssm.conv_kernel";
        d_inner: usize = "ssm.inner_size";
        d_state: usize = "ssm.state_size";
        n_value: usize = "ssm.time_step_rank";
        n_key: usize = "ssm.group_count";
        let per_key = n_value / n_key;
        check d_inner == d_state * n_value && n_value == n_key * per_key,
              "ssm.inner_size is ssm.time_step_rank times ssm.state_size, and ssm.time_step_rank a multiple of ssm.group_count";
        n_ff_exp: [usize] = "expert_feed_forward_length" or n_ff / n_expert_used;
        n_ff_shexp: [usize] = "expert_shared_feed_forward_length" or n_ff;
        // Value heads stand next to each other that go with one key head; in later models they take turns.
        let by_key = true;
    }

    tensors {
        token_embd:  embed  "token_embd"  [n_embd, n_vocab];
        output_norm: vector "output_norm" [n_embd];
        output:      linear "output"      [n_embd -> n_vocab] or token_embd;

        layer {
            attn_norm: vector "attn_norm"           [n_embd];
            ffn_norm:  vector "post_attention_norm" [n_embd];
            if is_recurrent {
                wqkv?:    linear "attn_qkv"    [n_embd -> n_key * d_state * (2 + per_key)];
                wz?:      linear "attn_gate"   [n_embd -> n_key * d_state * per_key];
                conv:     vector "ssm_conv1d"  [d_conv, n_key * d_state * (2 + per_key)];
                dt_bias:  raw    "ssm_dt.bias" [n_key * per_key];
                a:        raw    "ssm_a"       [n_key * per_key];
                ssm_norm: vector "ssm_norm"    [d_state];
                ssm_out:  linear "ssm_out"     [n_key * d_state * per_key -> n_embd];
                if by_key {
                    // Of older files, in place of the first two.
                    wqkvz?:     linear "ssm_in" [n_embd -> n_key * (d_state * (2 + 2 * per_key))];
                    beta_alpha: linear "ssm_ba" [n_embd -> n_key * (2 * per_key)];
                } else {
                    beta:  linear "ssm_beta"  [n_embd -> n_key * per_key];
                    alpha: linear "ssm_alpha" [n_embd -> n_key * per_key];
                }
            } else {
                wq:     linear "attn_q"      [n_embd -> n_head * (2 * head_dim)];
                wk:     linear "attn_k"      [n_embd -> n_head_kv * head_dim];
                wv:     linear "attn_v"      [n_embd -> n_head_kv * head_dim];
                q_norm: vector "attn_q_norm" [head_dim];
                k_norm: vector "attn_k_norm" [head_dim];
                wo:     linear "attn_output" [n_head * head_dim -> n_embd];
            }
            if n_expert > 0 {
                router:        linear  "ffn_gate_inp"       [n_embd -> n_expert];
                gate_exps?:    experts "ffn_gate_exps"      [n_embd -> n_ff_exp; n_expert];
                up_exps?:      experts "ffn_up_exps"        [n_embd -> n_ff_exp; n_expert];
                gate_up_exps?: experts "ffn_gate_up_exps"   [n_embd -> 2 * n_ff_exp; n_expert];
                down_exps:     experts "ffn_down_exps"      [n_ff_exp -> n_embd; n_expert];
                router_shexp:  linear  "ffn_gate_inp_shexp" [n_embd -> 1];
                gate_shexp:    linear  "ffn_gate_shexp"     [n_embd -> n_ff_shexp];
                up_shexp:      linear  "ffn_up_shexp"       [n_embd -> n_ff_shexp];
                down_shexp:    linear  "ffn_down_shexp"     [n_ff_shexp -> n_embd];
            } else {
                gate: linear "ffn_gate" [n_embd -> n_ff];
                up:   linear "ffn_up"   [n_embd -> n_ff];
                down: linear "ffn_down" [n_ff -> n_embd];
            }
        }
    }

    // What the layer's state gives for a normed `h`.
    fn remember(h, act = silu) {
        let qkvz = if has(wqkv) && has(wz) {
            concat(wqkv(h), wz(h))
        } else {
            let all = rust!([n_key * (d_state * (2 + 2 * per_key)), T] => {
                let w = b.present(&l.wqkvz, "attn_qkv` with `attn_gate`, or `ssm_in");
                b.linear(w, h)
            });
            let all = heads(all, n_key);
            let qk = concat(merge(all[..d_state]), merge(all[d_state..2 * d_state]));
            let vz = all[2 * d_state..];
            concat(qk, concat(merge(vz[..d_state * per_key]), merge(vz[d_state * per_key..])))
        };
        let qkv = silu(short_conv(qkvz[..n_key * d_state * (2 + per_key)], conv));
        let q = rms_norm(heads(qkv[..n_key * d_state], n_key), eps / d_state) / sqrt(d_state);
        let k = rms_norm(heads(qkv[n_key * d_state..2 * n_key * d_state], n_key), eps / d_state) / sqrt(d_state);
        let v = heads(qkv[2 * n_key * d_state..], n_key * per_key);
        let gates = if by_key {
            let all = heads(beta_alpha(h), n_key);
            concat(merge(all[..per_key]), merge(all[per_key..]))
        } else {
            concat(beta(h), alpha(h))
        };
        let decay = softplus(gates[n_key * per_key..] + dt_bias) * a;
        let y = linear_attention(q, k, v, decay = heads(decay, n_key * per_key), delta = true, tiled = !by_key,
                                 beta = heads(sigmoid(gates[..n_key * per_key]), n_key * per_key));
        let z = heads(qkvz[n_key * d_state * (2 + per_key)..], n_key * per_key);
        ssm_out(merge(act(z) * rms_norm(y, ssm_norm, eps)))
    }

    // Each query head comes with its gate.
    fn attend(h, selection?) {
        let qg = heads(wq(h), n_head);
        let q = rope(rms_norm(qg[..head_dim], q_norm, eps));
        let k = rope(rms_norm(heads(wk(h), n_head_kv), k_norm, eps));
        let v = heads(wv(h), n_head_kv);
        let found = attention(q, k, v, selection = selection);
        wo(found * sigmoid(merge(qg[head_dim..])))
    }

    fn experts(h) {
        let routed = moe(h, router = router(h), gate = gate_exps, up = up_exps, gate_up = gate_up_exps, down = down_exps,
                         act = silu, gating = softmax, n_used = n_expert_used, norm_weights = true);
        routed + down_shexp(silu(gate_shexp(h)) * up_shexp(h)) * sigmoid(router_shexp(h))
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            let h = rms_norm(x, attn_norm, eps);
            x += if is_recurrent { remember(h) } else { attend(h) };
            let h = rms_norm(x, ffn_norm, eps);
            x += if n_expert > 0 { experts(h) } else { down(silu(gate(h)) * up(h)) };
        }
        output(rms_norm(x, output_norm, eps))
    }

    test {
        n_embd: 256, n_head: 2, n_layer: 2, n_ff: 384, n_vocab: 128, n_expert: 2, n_expert_used: 2, interval: 2, d_conv: 4,
        d_inner: 256, d_state: 128, n_value: 2, n_key: 2
    }
}
