//! OLMo 1: layer norms without weights, clamped queries, keys, and values, and SwiGLU.

arch_macros::arch! {
    name: "olmo";
    rope: norm;

    tensors {
        token_embd: embed  "token_embd" [n_embd, n_vocab];
        output:     linear "output"     [n_embd -> n_vocab] or token_embd;

        layer {
            use clipped_attention, gated_ffn;
        }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            x += attend(layer_norm(x));
            x += ffn(layer_norm(x));
        }
        output(layer_norm(x))
    }

    test { n_embd: 256, n_head: 4, n_head_kv: 2, n_layer: 2, n_ff: 384, n_vocab: 128 }
}
