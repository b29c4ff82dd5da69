//! PLaMo: parallel attention and feed-forward network after one RMS norm, rotary positions on whole heads,
//! and SwiGLU.

arch_macros::arch! {
    name: "plamo";
    like: "decoder";
    rope: neox;

    tensors {
        output: linear [n_embd -> n_vocab];

        layer {
            without ffn_norm;
        }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            let h = rms_norm(x, attn_norm);
            x += attend(h, dims = head_dim) + ffn(h);
        }
        output(rms_norm(x, output_norm))
    }
}
