//! Hunyuan 3: RMS norms on each query and key head, dense leading layers, then experts selected with a bias beside a shared one.
//! Which layers are dense shows in their tensors.

arch_macros::arch! {
    name: "hy_v3";
    rope: neox;

    hparams {
        eps: f32 = "attention.layer_norm_rms_epsilon";
        n_ff_exp: [usize] = "expert_feed_forward_length";
        n_ff_shexp: [usize] = "expert_shared_feed_forward_length" or n_ff_exp;
        weights_scale: f32 = "expert_weights_scale" or 1.0;
        norm_weights: bool = "expert_weights_norm" or false;
        gating_func: usize = "expert_gating_func" or 0;
        check gating_func <= 4, "expert_gating_func is one of 1 to 4";
        // Files without a word on it mean sigmoid, which is 2.
        let gating = if gating_func == 0 { 2 } else { gating_func };
        n_group: usize = "expert_group_count" or 1;
        n_group_used: usize = "expert_group_used_count" or 1;
    }

    tensors {
        use tied_output;

        layer {
            attn_norm, ffn_norm: vector [n_embd];
            use qk_norm_attention;
            router?:       linear  "ffn_gate_inp"     [n_embd -> n_expert];
            probs_bias?:   raw     "exp_probs_b"      [n_expert];
            gate_up_exps?: experts "ffn_gate_up_exps" [n_embd -> 2 * n_ff_exp; n_expert];
            gate_exps?:    experts "ffn_gate_exps"    [n_embd -> n_ff_exp; n_expert];
            up_exps?:      experts "ffn_up_exps"      [n_embd -> n_ff_exp; n_expert];
            down_exps?:    experts "ffn_down_exps"    [n_ff_exp -> n_embd; n_expert];
            gate_shexp?:   linear  "ffn_gate_shexp"   [n_embd -> n_ff_shexp];
            up_shexp?:     linear  "ffn_up_shexp"     [n_embd -> n_ff_shexp];
            down_shexp?:   linear  "ffn_down_shexp"   [n_ff_shexp -> n_embd];
            gate?:         linear  "ffn_gate"         [n_embd -> n_ff];
            up?:           linear  "ffn_up"           [n_embd -> n_ff];
            down?:         linear  "ffn_down"         [n_ff -> n_embd];
        }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            x += attend(rms_norm(x, attn_norm, eps));
            let h = rms_norm(x, ffn_norm, eps);
            if has(router) && has(down_exps) {
                // A layer of experts has a shared one.
                x += moe(h, router = router(h), gate_up = gate_up_exps, gate = gate_exps, up = up_exps,
                         down = down_exps, act = silu, gating = gating, n_used = n_expert_used,
                         norm_weights = norm_weights, scale = weights_scale, selection_bias = probs_bias,
                         n_groups = n_group, n_groups_used = n_group_used);
                x += rust!([n_embd, T] => b.gated_ffn([l.gate_shexp, l.up_shexp, l.down_shexp], "_shexp", h, 0.0));
            } else {
                x += rust!([n_embd, T] => b.gated_ffn([l.gate, l.up, l.down], "", h, 0.0));
            }
        }
        output(rms_norm(x, output_norm, eps))
    }

    test { n_embd: 256, n_head: 2, n_layer: 2, n_ff: 384, n_vocab: 128, n_expert: 2, n_expert_used: 2, n_ff_exp: 384 }
}
