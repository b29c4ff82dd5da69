//! Nemotron 3 and 4 (Minitron): biased LayerNorms, rotation of a part of each head, a feed-forward network of
//! squared ReLUs without a gate.

arch_macros::arch! {
    name: "nemotron";
    rope: neox;

    hparams {
        eps: f32 = "attention.layer_norm_epsilon";
    }

    tensors {
        use own_output(kind = norm);

        layer {
            attn_norm, ffn_norm: norm [n_embd];
            use self_attention;
            use plain_ffn;
        }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            x += attend(layer_norm(x, attn_norm, eps));
            x += ffn(layer_norm(x, ffn_norm, eps), act = relu_sqr);
        }
        output(layer_norm(x, output_norm, eps))
    }

    test { n_embd: 256, n_head: 4, n_head_kv: 2, n_layer: 2, n_ff: 384, n_vocab: 128 }
}
