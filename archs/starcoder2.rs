//! StarCoder2: layer norms, biases in all projections, grouped-query attention with rotary positions, and a
//! GELU feed-forward network without a gate.

arch_macros::arch! {
    name: "starcoder2";
    rope: neox;

    tensors {
        use tied_output(kind = norm);

        layer {
            attn_norm, ffn_norm: norm [n_embd];
            use self_attention;
            use plain_ffn;
        }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            x += attend(layer_norm(x, attn_norm));
            x += ffn(layer_norm(x, ffn_norm));
        }
        output(layer_norm(x, output_norm))
    }

    test { n_embd: 256, n_head: 2, n_head_kv: 2, n_layer: 2, n_ff: 384, n_vocab: 128 }
}
