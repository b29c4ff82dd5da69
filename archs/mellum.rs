//! Mellum 2: sliding windows except in every fourth layer; only the full layers scale their rotary positions.
//! RMS norms per query and key head, softmax routing with normalized weights.

arch_macros::arch! {
    name: "mellum";
    rope: neox;

    hparams {
        n_ff_exp: [usize] = "expert_feed_forward_length";
    }

    tensors {
        use untied_output, sliding_window(length = 0, period = 4);

        layer {
            attn_norm, ffn_norm: vector [n_embd];
            use qk_norm_attention;
            use experts(width = n_ff_exp);
        }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            x += attend(rms_norm(x, attn_norm), rope_scale = rope_scale, magnitude = if is_swa { 1.0 }, yarn = !is_swa,
                        window = sliding(n_swa, is_swa));
            x += routed(rms_norm(x, ffn_norm));
        }
        output(rms_norm(x, output_norm))
    }

    test { n_embd: 256, n_head: 2, n_layer: 2, n_ff: 384, n_vocab: 128, n_expert: 2, n_expert_used: 2, n_ff_exp: 384 }
}
