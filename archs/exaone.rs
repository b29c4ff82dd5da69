//! EXAONE 3: grouped-query attention and SwiGLU, rotary positions with NeoX pairing and frequency factors for
//! long contexts.

arch_macros::arch! {
    name: "exaone";
    like: "decoder";
    rope: neox;

    tensors {
        rope_freqs?: vector [n_rot / 2];
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            x += attend(rms_norm(x, attn_norm), factors = rope_freqs);
            x += ffn(rms_norm(x, ffn_norm));
        }
        output(rms_norm(x, output_norm))
    }
}
