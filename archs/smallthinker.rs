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
        // Without windows all layers rotate, and in a model of four, for which the step is no step.
        let rotated = n_swa == 0 || n_layer == 4 || il % 4 != 0;
    }

    tensors {
        use tied_output, sliding_window(length = 0, period = 4, kind = late_pattern);

        layer {
            attn_norm, ffn_norm: vector [n_embd];
            use self_attention;
            use experts(width = n_ff_exp);
        }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            let scores = router(x);
            // Whatever length the file gives, models were trained with this one.
            x += attend(rms_norm(x, attn_norm, eps), rotated = rotated, base = rope_base, window = standard(4096, is_swa));
            x += routed(rms_norm(x, ffn_norm, eps), scores = scores, act = relu, gating = gating_func);
        }
        output(rms_norm(x, output_norm, eps))
    }

    test { n_embd: 256, n_head: 2, n_layer: 2, n_ff: 384, n_vocab: 128, n_expert: 2, n_expert_used: 2, n_ff_exp: 384 }
}
