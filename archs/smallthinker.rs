//! SmallThinker: experts chosen from the layer's input before attention, ReLU gates, and every fourth layer without
//! window and rotation.

arch_macros::arch! {
    name: "smallthinker";
    rope: neox;

    hparams {
        eps: f32 = "attention.layer_norm_rms_epsilon";
        n_ff_exp: [usize] = "expert_feed_forward_length";
        gating_func: usize = "expert_gating_func" or 1;
        check gating_func <= 4, "expert_gating_func is one of 1 to 4";
        window: usize = "attention.sliding_window" or 0;
        pattern: late_pattern = "attention.sliding_window_pattern" or 4;
        rope_base_swa: f32 = "rope.freq_base_swa" or rope_freq_base;
        let windowed = window > 0 && pattern;
        // Whatever number the file gives, models were trained with this one.
        let n_swa = 4096;
        // Without windows all layers rotate, and in a model of four, for which the step is no step.
        let rotated = window == 0 || n_layer == 4 || il % 4 != 0;
        let rope_base = if windowed { rope_base_swa } else { rope_freq_base };
    }

    tensors {
        use tied_output;

        layer {
            attn_norm, ffn_norm: vector [n_embd];
            use self_attention;
            use experts(width = n_ff_exp);
        }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            let experts = router(x);
            x += attend_where(rms_norm(x, attn_norm, eps), rotated, base = rope_base, window = standard(n_swa, windowed));
            let h = rms_norm(x, ffn_norm, eps);
            x += moe(h, router = experts, gate = gate_exps, up = up_exps, down = down_exps, act = relu,
                     gating = gating_func, n_used = n_expert_used, norm_weights = true);
        }
        output(rms_norm(x, output_norm, eps))
    }

    test { n_embd: 256, n_head: 2, n_layer: 2, n_ff: 384, n_vocab: 128, n_expert: 2, n_expert_used: 2, n_ff_exp: 384 }
}
