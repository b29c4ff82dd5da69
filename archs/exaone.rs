//! EXAONE 3: grouped-query attention and SwiGLU, rotary positions with NeoX pairing and frequency factors for
//! long contexts.

arch_macros::arch! {
    name: "exaone";
    rope: neox;

    hparams {
        eps: f32 = "attention.layer_norm_rms_epsilon";
    }

    tensors {
        use tied_output;
        rope_freqs?: vector "rope_freqs" [n_rot / 2];

        layer {
            attn_norm, ffn_norm: vector [n_embd];
            use self_attention;
            use gated_ffn;
        }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            x += attend(rms_norm(x, attn_norm, eps), factors = rope_freqs);
            x += ffn(rms_norm(x, ffn_norm, eps));
        }
        output(rms_norm(x, output_norm, eps))
    }

    test { n_embd: 256, n_head: 4, n_head_kv: 2, n_layer: 2, n_ff: 384, n_vocab: 128 }
}
