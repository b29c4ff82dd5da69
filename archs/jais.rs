//! Jais: ALiBi instead of positions, attention scores divided by the head size instead of its square root,
//! layer norms, and SwiGLU with biases.

arch_macros::arch! {
    name: "jais";
    rope: none;

    hparams {
        alibi: f32 = "attention.max_alibi_bias" or 0.0;
    }

    tensors {
        use untied_output(kind = norm);

        layer {
            attn_norm, ffn_norm: norm [n_embd];
            use self_attention;
            use gated_ffn;
        }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            x += attend(layer_norm(x, attn_norm), rotated = false, scale = 1.0 / head_dim, alibi = alibi);
            x += ffn(layer_norm(x, ffn_norm));
        }
        output(layer_norm(x, output_norm))
    }

    test { n_embd: 256, n_head: 2, n_head_kv: 2, n_layer: 2, n_ff: 384, n_vocab: 128 }
}
