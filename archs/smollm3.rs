//! SmolLM3: grouped-query attention and SwiGLU. Every fourth layer has no rotary positions.

arch_macros::arch! {
    name: "smollm3";
    rope: norm;

    hparams {
        eps: f32 = "attention.layer_norm_rms_epsilon";
        // Layers 3, 7, 11, …; not stored in files.
        let use_rope = (il + 1) % 4 != 0;
    }

    tensors {
        use tied_output;

        layer {
            attn_norm, ffn_norm: vector [n_embd];
            use self_attention;
            use gated_ffn;
        }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            x += attend(rms_norm(x, attn_norm, eps), rotated = use_rope);
            x += ffn(rms_norm(x, ffn_norm, eps));
        }
        output(rms_norm(x, output_norm, eps))
    }

    test { n_embd: 256, n_head: 4, n_head_kv: 2, n_layer: 2, n_ff: 384, n_vocab: 128 }
}
