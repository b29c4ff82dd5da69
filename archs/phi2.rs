//! Phi-2: attention and feed-forward side by side on one layer norm, biases everywhere, rotary positions on a part of each head.

arch_macros::arch! {
    name: "phi2";
    rope: neox;

    hparams {
        eps: f32 = "attention.layer_norm_epsilon";
    }

    tensors {
        use own_output(kind = norm);

        layer {
            attn_norm: norm "attn_norm" [n_embd];
            use self_attention;
            use plain_ffn;
        }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            let h = layer_norm(x, attn_norm, eps);
            x += attend(h) + ffn(h);
        }
        output(layer_norm(x, output_norm, eps))
    }

    test { n_embd: 256, n_head: 2, n_head_kv: 2, n_layer: 2, n_ff: 384, n_vocab: 128 }
}
