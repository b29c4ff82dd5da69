//! PLaMo: parallel attention and feed-forward network after one RMS norm, rotary positions on whole heads,
//! and SwiGLU.

arch_macros::arch! {
    name: "plamo";
    rope: neox;

    hparams {
        eps: f32 = "attention.layer_norm_rms_epsilon";
    }

    tensors {
        use untied_output;

        layer {
            attn_norm: vector "attn_norm" [n_embd];
            use self_attention;
            use gated_ffn;
        }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            let h = rms_norm(x, attn_norm, eps);
            x += attend(h, dims = head_dim) + ffn(h);
        }
        output(rms_norm(x, output_norm, eps))
    }

    test { n_embd: 256, n_head: 4, n_head_kv: 2, n_layer: 2, n_ff: 384, n_vocab: 128 }
}
