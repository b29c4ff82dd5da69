//! Arcee AFM: Llama attention with a feed-forward network of squared ReLUs without a gate.

arch_macros::arch! {
    name: "arcee";
    rope: norm;

    hparams {
        eps: f32 = "attention.layer_norm_rms_epsilon";
    }

    tensors {
        use tied_output;
        rope_freqs?: vector "rope_freqs" [n_rot / 2];

        layer {
            attn_norm, ffn_norm: vector [n_embd];
            use self_attention;
            use plain_ffn;
        }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            x += attend(rms_norm(x, attn_norm, eps), factors = rope_freqs);
            x += ffn(rms_norm(x, ffn_norm, eps), act = relu_sqr);
        }
        output(rms_norm(x, output_norm, eps))
    }

    test { n_embd: 256, n_head: 4, n_head_kv: 2, n_layer: 2, n_ff: 384, n_vocab: 128 }
}
