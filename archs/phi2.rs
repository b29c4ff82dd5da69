//! Phi-2: parallel attention and feed-forward network after one layer norm, biases in all projections, and
//! partial rotary positions.

arch_macros::arch! {
    name: "phi2";
    rope: neox;

    tensors {
        use untied_output(kind = norm);

        layer {
            attn_norm: norm "attn_norm" [n_embd];
            use self_attention;
            use plain_ffn;
        }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            let h = layer_norm(x, attn_norm);
            x += attend(h) + ffn(h);
        }
        output(layer_norm(x, output_norm))
    }

    test { n_embd: 256, n_head: 2, n_head_kv: 2, n_layer: 2, n_ff: 384, n_vocab: 128 }
}
