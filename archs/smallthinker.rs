//! SmallThinker: experts with ReLU gates, selected from the layer's input before attention. Every fourth
//! layer has full attention without rotary positions.

arch_macros::arch! {
    name: "smallthinker";
    rope: neox;

    hparams {
        n_ff_exp: [usize] = "expert_feed_forward_length";
        gating_func: usize = "expert_gating_func";
        check gating_func > 0 && gating_func <= 4, "expert_gating_func must be 1 to 4";
        // All layers have rotary positions in models without windows and in a model with four layers.
        let rotated = n_swa == 0 || n_layer == 4 || il % 4 != 0;
    }

    tensors {
        use tied_output, sliding_window(length = 0, period = 4, kind = dense_first);

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
            // All models were trained with this window, regardless of the file's value.
            x += attend(rms_norm(x, attn_norm), rotated = rotated, base = rope_base, window = sliding(4096, is_swa));
            x += routed(rms_norm(x, ffn_norm), scores = scores, act = relu, gating = gating_func);
        }
        output(rms_norm(x, output_norm))
    }

    test { n_embd: 256, n_head: 2, n_layer: 2, n_ff: 384, n_vocab: 128, n_expert: 2, n_expert_used: 2, n_ff_exp: 384, gating_func: 2 }
}
