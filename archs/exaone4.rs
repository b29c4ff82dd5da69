//! EXAONE 4: norms after attention and feed-forward network and none before, RMS norms on each query and key head.
//! The 32B model has sliding windows and rotates in those layers alone.

arch_macros::arch! {
    name: "exaone4";
    rope: neox;

    hparams {
        eps: f32 = "attention.layer_norm_rms_epsilon";
        n_swa: usize = "attention.sliding_window" or 4096;
        is_swa: pattern = "attention.sliding_window_pattern" or 4;
        check n_swa > 0, "attention.sliding_window is not 0";
        // Only the 32B model, known by its 64 layers, uses the window that files of all sizes may name.
        let windowed = n_layer == 64 && is_swa;
        let use_rope = n_layer != 64 || is_swa;
    }

    tensors {
        use tied_output;
        rope_freqs?: vector "rope_freqs" [n_rot / 2];

        layer {
            use qk_norm_attention, gated_ffn;
            attn_post_norm, ffn_post_norm: vector "post_attention_norm", "post_ffw_norm" [n_embd];
        }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            let attn = attend_where(x, use_rope, factors = rope_freqs, window = standard(n_swa, windowed));
            x += rms_norm(attn, attn_post_norm, eps);
            x += rms_norm(ffn(x), ffn_post_norm, eps);
        }
        output(rms_norm(x, output_norm, eps))
    }

    test { n_embd: 256, n_head: 4, n_head_kv: 2, n_layer: 2, n_ff: 384, n_vocab: 128, n_swa: 32 }
}
