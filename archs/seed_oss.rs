//! Seed-OSS: biased query, key and value projections, grouped-query attention, SwiGLU. The norm before the feed-
//! forward network is stored as the one after attention.

arch_macros::arch! {
    name: "seed_oss";
    rope: neox;

    hparams {
        eps: f32 = "attention.layer_norm_rms_epsilon";
    }

    tensors {
        use tied_output;

        layer {
            attn_norm: vector "attn_norm" [n_embd];
            use self_attention;
            ffn_norm: vector "post_attention_norm" [n_embd];
            use gated_ffn;
        }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            x += attend(rms_norm(x, attn_norm, eps));
            x += ffn(rms_norm(x, ffn_norm, eps));
        }
        output(rms_norm(x, output_norm, eps))
    }

    test { n_embd: 256, n_head: 4, n_head_kv: 2, n_layer: 2, n_ff: 384, n_vocab: 128 }
}
