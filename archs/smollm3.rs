//! SmolLM3: grouped-query attention and SwiGLU. Every fourth layer has no rotary positions.

arch_macros::arch! {
    name: "smollm3";
    like: "decoder";
    rope: norm;

    hparams {
        // Layers 3, 7, 11, …; not stored in files.
        let use_rope = (il + 1) % 4 != 0;
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            x += attend(rms_norm(x, attn_norm), rotated = use_rope);
            x += ffn(rms_norm(x, ffn_norm));
        }
        output(rms_norm(x, output_norm))
    }
}
