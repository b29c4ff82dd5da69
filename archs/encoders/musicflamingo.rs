//! Audio Flamingo 3: the encoder of Qwen2-Audio with a projection of two layers.

arch_macros::encoder! {
    name: "musicflamingo";
    like: "qwen2a";

    text { audio }

    tensors {
        without fc;
        fc1: linear "mm.a.mlp.1" [n_embd -> n_out];
        fc2: linear "mm.a.mlp.2" [n_out -> n_out];
    }

    graph {
        let x = embedded_frames();
        for layer {
            x += attend(layer_norm(x, ln1));
            x += ffn(layer_norm(x, ln2));
        }
        fc2(gelu_erf(fc1(layer_norm(pool_rows(x, 2), post_ln))))
    }
}
