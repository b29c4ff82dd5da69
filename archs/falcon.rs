//! Falcon: parallel attention and feed-forward network with few key heads. The 40B model has a separate norm
//! for attention.

arch_macros::arch! {
    name: "falcon";
    rope: neox;

    tensors {
        use tied_output(kind = norm);

        layer {
            attn_norm:    norm "attn_norm"   [n_embd];
            attn_norm_2?: norm "attn_norm_2" [n_embd];
            use self_attention;
            use plain_ffn(activation = gelu_erf);
        }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            let h = layer_norm(x, attn_norm);
            let ffn = ffn(h);
            if has(attn_norm_2) {
                h = layer_norm(x, attn_norm_2);
            }
            x += attend(h) + ffn;
        }
        output(layer_norm(x, output_norm))
    }

    test { n_embd: 256, n_head: 2, n_head_kv: 2, n_layer: 2, n_ff: 384, n_vocab: 128 }
}
