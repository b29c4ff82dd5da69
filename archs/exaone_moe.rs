//! K-EXAONE: sliding windows with rotary positions except in every fourth layer. Dense leading layers, then
//! experts selected with a bias, plus a shared expert. RMS norms per query and key head.

arch_macros::arch! {
    name: "exaone-moe";
    like: "bailingmoe2";

    hparams {
        let n_shared = 1;
    }

    tensors {
        use sliding_window(period = 4);
        output: linear [n_embd -> n_vocab] or token_embd;
        rope_freqs?: vector [n_rot / 2];
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            x += attend(rms_norm(x, attn_norm), rotated = swa_pattern, base = rope_base_swa, factors = rope_freqs,
                        window = sliding(n_swa, is_swa));
            x += ffn_or_experts(rms_norm(x, ffn_norm));
        }
        output(rms_norm(x, output_norm))
    }

    test {
        n_embd: 256, n_head: 2, n_layer: 2, n_ff: 384, n_vocab: 128, n_expert: 2, n_expert_used: 2, n_ff_exp: 384,
        gating_func: 2, n_swa: 32
    }
}
