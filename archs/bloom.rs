//! BLOOM: ALiBi instead of positions, a layer norm on the embeddings, biases in all projections, and a GELU
//! feed-forward network without a gate.

arch_macros::arch! {
    name: "bloom";
    rope: none;

    tensors {
        use tied_output(kind = norm);
        token_norm: norm "token_embd_norm" [n_embd];

        layer {
            attn_norm, ffn_norm: norm [n_embd];
            use self_attention;
            use plain_ffn;
        }
    }

    graph {
        let x = layer_norm(token_embd[tokens], token_norm);
        for layer {
            x += attend(layer_norm(x, attn_norm), rotated = false, alibi = 8.0);
            x += ffn(layer_norm(x, ffn_norm));
        }
        output(layer_norm(x, output_norm))
    }

    test { n_embd: 256, n_head: 2, n_head_kv: 2, n_layer: 2, n_ff: 384, n_vocab: 128 }
}
