//! Kimi K3: Kimi Linear with soft limits on activations, gated attention and experts in a latent space. A block of layers starts
//! from nothing; its layers read a weighted choice of what the blocks before it started with.

arch_macros::arch! {
    name: "kimi-k3";
    like: "kimi-linear";

    hparams {
        q_lora: usize = "attention.q_lora_rank" or 0;
        min_decay: f32 = "kda.gate_lower_bound" or 0.0;
        norm_weights: bool = "expert_weights_norm" or false;
        latent: usize = "expert_latent_length" or 0;
        let n_latent = if latent > 0 { latent } else { n_embd };
        block: usize = "attn_res.block_size";
        squash: f32 = "activation.situ_beta";
        up_squash: f32 = "activation.situ_linear_beta";
        check squash > 0.0, "activation.situ_beta is positive";
    }

    tensors {
        if block > 0 {
            output_score: vector "output_res_score" [n_embd];
        }
        layer {
            without gate_a, gate_b;
            if block > 0 {
                attn_score: vector "attn_res_score" [n_embd];
                ffn_score:  vector "ffn_res_score"  [n_embd];
            }
            if is_recurrent {
                a:      raw    "ssm_a" [n_head_max];
                y_gate: linear "ssm_g" [n_embd -> n_head_max * d_kda];
            } else {
                if q_lora > 0 {
                    wq_a:   linear "attn_q_a"      [n_embd -> q_lora];
                    q_norm: vector "attn_q_a_norm" [q_lora];
                    wq_b:   linear "attn_q_b"      [q_lora -> n_head * q_head];
                } else {
                    wq_mla: linear "attn_q" [n_embd -> n_head * q_head];
                }
                attn_gate?: linear "attn_gate" [n_embd -> n_head * v_head];
            }
            if il >= n_dense {
                gate_exps:    experts "ffn_gate_exps"   [n_latent -> n_ff_exp; n_expert];
                up_exps:      experts "ffn_up_exps"     [n_latent -> n_ff_exp; n_expert];
                down_exps:    experts "ffn_down_exps"   [n_ff_exp -> n_latent; n_expert];
                gate_shexp?:  linear  "ffn_gate_shexp"  [n_embd -> n_ff_shexp];
                up_shexp?:    linear  "ffn_up_shexp"    [n_embd -> n_ff_shexp];
                down_shexp?:  linear  "ffn_down_shexp"  [n_ff_shexp -> n_embd];
                if latent > 0 {
                    routed_down:  linear "ffn_routed_down" [n_embd -> n_latent];
                    routed_norm?: vector "ffn_routed_norm" [n_latent];
                    routed_up:    linear "ffn_routed_up"   [n_latent -> n_embd];
                }
            }
        }
    }

    graph {
        let x = token_embd[tokens];
        let bank = x; // beside each other, [n_embd, blocks, T]
        for layer {
            let h = x;
            if block > 0 && il > 0 {
                h = rust!([n_embd, T] => {
                    let score = b.present(&l.attn_score);
                    b.recall(bank, x, score, m.hp.eps)
                });
            }
            let h = rms_norm(h, attn_norm, eps);
            let y = if is_recurrent {
                let q = heads(silu(short_conv(wq(h), q_conv)), n_head_max);
                let k = heads(silu(short_conv(wk(h), k_conv)), n_head_max);
                let v = heads(silu(short_conv(wv(h), v_conv)), n_head_max);
                let rate = rust!([1, n_head_max] => {
                    let a = b.present(&l.a);
                    let a = b.weight(a);
                    b.heads(a, m.base.n_head_max())
                });
                let decay = decay_b(decay_a(h)) + dt_bias;
                let decay = if min_decay < 0.0 {
                    sigmoid(heads(decay, n_head_max) * -rate) * min_decay
                } else {
                    heads(softplus(decay), n_head_max) * rate
                };
                let y = linear_attention(rms_norm(q, eps / d_kda) / sqrt(d_kda), rms_norm(k, eps / d_kda) / sqrt(d_kda), v,
                                         decay = decay, beta = heads(sigmoid(beta(h)), n_head_max), delta = true);
                wy(sigmoid(y_gate(h)) * merge(rms_norm(y, y_norm, eps)))
            } else {
                let q = if q_lora > 0 { wq_b(rms_norm(wq_a(h), q_norm, eps)) } else { wq_mla(h) };
                let q = heads(q, n_head);
                let kv = wkv_a(h);
                let q = concat(wk_b(q[..nope]), q[nope..]);
                let k = concat(rms_norm(kv[..kv_lora], kv_norm, eps), kv[kv_lora..]);
                let y = attention(q, heads(k, 1), v_in_k = kv_lora, scale = 1.0 / sqrt(q_head));
                let y = merge(wv_b(heads(y, n_head)));
                if has(attn_gate) {
                    y *= sigmoid(attn_gate(h));
                }
                wo(y)
            };
            if block > 0 && il % block == 0 {
                bank = rust!([n_embd, T] => b.bank((il > 0).then_some(bank), x));
                x = y;
            } else {
                x += y;
            }
            let h = x;
            if block > 0 {
                h = rust!([n_embd, T] => {
                    let score = b.present(&l.ffn_score);
                    b.recall(bank, x, score, m.hp.eps)
                });
            }
            let h = rms_norm(h, ffn_norm, eps);
            if il < n_dense {
                let g = gate(h);
                let u = up(h);
                x += down(sigmoid(g) * (softcap(g, squash) * if up_squash > 0.0 { softcap(u, up_squash) } else { u }));
            } else {
                let z = if latent > 0 { routed_down(h) } else { rust!([n_latent, T] => h) };
                let y = moe(z, router = router(h), gate = gate_exps, up = up_exps, down = down_exps, act = silu,
                            gating = gating_func, n_used = n_expert_used, norm_weights = norm_weights, scale = weights_scale,
                            selection_bias = probs_bias, squash = squash, up_squash = up_squash);
                if latent > 0 {
                    if has(routed_norm) {
                        y = rms_norm(y, routed_norm, eps);
                    }
                    x += routed_up(y);
                } else {
                    x += rust!([n_embd, T] => y);
                }
                if has(gate_shexp) && has(up_shexp) && has(down_shexp) {
                    let g = gate_shexp(h);
                    let u = up_shexp(h);
                    x += down_shexp(sigmoid(g) * (softcap(g, squash) * if up_squash > 0.0 { softcap(u, up_squash) } else { u }));
                }
            }
        }
        if block > 0 {
            x = rust!([n_embd, T] => {
                let score = b.present(&m.w.output_score);
                b.recall(bank, x, score, m.hp.eps)
            });
        }
        output(rms_norm(x, output_norm, eps))
    }

    test {
        n_embd: 128, n_head: 1, n_layer: 2, n_ff: 192, n_vocab: 128, n_expert: 2, n_expert_used: 2, q_head: 192, v_head: 128,
        kv_lora: 512, d_conv: 4, d_kda: 128, n_ff_exp: 192, n_shared: 1, gating_func: 2, block: 1
    }
}
