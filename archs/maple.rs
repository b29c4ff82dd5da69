//! Maple: sliding windows with rotary positions in the layers that the file lists, and RMS norms per query and key
//! head. Experts have softmax routing and clamped gates.

arch_macros::arch! {
    name: "maple";
    rope: neox;

    hparams {
        n_ff_exp: [usize] = "expert_feed_forward_length";
        swiglu_limit: [f32] = "swiglu_clamp_exp";
    }

    tensors {
        use untied_output, sliding_window(kind = [bool]);

        layer {
            attn_norm, ffn_norm: vector [n_embd];
            use qk_norm_attention;
            use experts(width = n_ff_exp);
        }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            x += attend(rms_norm(x, attn_norm), rotated = swa_pattern, base = rope_base_swa,
                        window = sliding(n_swa, is_swa));
            x += routed(rms_norm(x, ffn_norm), limit = swiglu_limit);
        }
        output(rms_norm(x, output_norm))
    }

    test {
        n_embd: 256, n_head: 2, n_layer: 2, n_ff: 384, n_vocab: 128, n_expert: 2, n_expert_used: 2, n_ff_exp: 384,
        n_swa: 32
    }
}
