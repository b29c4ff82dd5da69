//! Command A with experts: attention and feed-forward side by side on one norm, windows and rotation in three of four
//! layers, dense leading layers, then experts whose sum with a shared one is halved.

arch_macros::arch! {
    name: "cohere2moe";
    rope: norm;

    hparams {
        norm_eps: f32 = "attention.layer_norm_epsilon" or 0.0;
        rms_eps: f32 = "attention.layer_norm_rms_epsilon" or 0.0;
        check norm_eps > 0.0 || rms_eps > 0.0, "one of the two norm epsilons is given";
        logit_factor: f32 = "logit_scale";
        n_swa: usize = "attention.sliding_window";
        is_swa: late_pattern = "attention.sliding_window_pattern" or 4;
        rope_base_swa: f32 = "rope.freq_base_swa" or rope_freq_base;
        n_dense: usize = "leading_dense_block_count";
        n_ff_exp: [usize] = "expert_feed_forward_length";
        n_shared: usize = "expert_shared_count" or 0;
        n_ff_shexp: [usize] = "expert_shared_feed_forward_length" or n_ff_exp * n_shared;
        weights_scale: f32 = "expert_weights_scale" or 1.0;
        norm_weights: bool = "expert_weights_norm" or false;
        gating_func: usize = "expert_gating_func" or 0;
        check gating_func <= 4, "expert_gating_func is one of 1 to 4";
        // Files without a word on it mean sigmoid, which is 2.
        let gating = if gating_func == 0 { 2 } else { gating_func };
        // A factor of 0 says that there is none.
        let logit_scale = if logit_factor == 0.0 { 1.0 } else { logit_factor };
        let rope_base = if is_swa { rope_base_swa } else { rope_freq_base };
        let has_experts = il >= n_dense;
        let has_shared = has_experts && n_shared > 0;
    }

    tensors {
        use tied_output;

        layer {
            attn_norm: vector "attn_norm" [n_embd];
            use self_attention;
            if has_experts {
                router:        linear  "ffn_gate_inp"     [n_embd -> n_expert];
                gate_up_exps?: experts "ffn_gate_up_exps" [n_embd -> 2 * n_ff_exp; n_expert];
                gate_exps?:    experts "ffn_gate_exps"    [n_embd -> n_ff_exp; n_expert];
                up_exps?:      experts "ffn_up_exps"      [n_embd -> n_ff_exp; n_expert];
                down_exps:     experts "ffn_down_exps"    [n_ff_exp -> n_embd; n_expert];
            } else {
                use gated_ffn;
            }
            if has_shared {
                use shared_experts(width = n_ff_shexp);
            }
        }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            let h = if rms_eps > 0.0 { rms_norm(x, attn_norm, rms_eps) } else { layer_norm(x, attn_norm, norm_eps) };
            let q = heads(wq(h), n_head);
            let k = heads(wk(h), n_head_kv);
            let v = heads(wv(h), n_head_kv);
            // Full layers go without rotation, the dense leading ones excepted.
            if is_swa || il < n_dense {
                q = rope(q, base = rope_base);
                k = rope(k, base = rope_base);
            }
            let attn = wo(attention(q, k, v, window = standard(n_swa, is_swa)));
            if has_experts {
                let ffn = moe(h, router = router(h), gate = gate_exps, up = up_exps, gate_up = gate_up_exps,
                              down = down_exps, act = silu, gating = gating, n_used = n_expert_used,
                              norm_weights = norm_weights, scale = weights_scale);
                if has_shared {
                    ffn = (ffn + shared(h)) * 0.5;
                }
                x += ffn + attn;
            } else {
                x += ffn(h) + attn;
            }
        }
        let h = if rms_eps > 0.0 { rms_norm(x, output_norm, rms_eps) } else { layer_norm(x, output_norm, norm_eps) };
        output(h) * logit_scale
    }

    test {
        n_embd: 256, n_head: 2, n_layer: 2, n_ff: 384, n_vocab: 128, n_expert: 2, n_expert_used: 2, n_ff_exp: 384,
        n_swa: 32, n_dense: 0
    }
}
