//! GLM-4 (0414): ChatGLM with norms after attention and the feed-forward network in addition to the norms
//! before them. Files of the vision model have multi-axis positions.

arch_macros::arch! {
    name: "glm4";
    rope: norm or mrope;

    hparams {
        eps: f32 = "attention.layer_norm_rms_epsilon";
    }

    tensors {
        use tied_output;

        layer {
            attn_norm, ffn_norm: vector [n_embd];
            use self_attention;
            attn_post: vector "post_attention_norm" [n_embd];
            up:        linear "ffn_up"              [n_embd -> 2 * n_ff]; // rows of the gate, then of the up projection
            down:      linear "ffn_down"            [n_ff -> n_embd];
            ffn_post:  vector "post_ffw_norm"       [n_embd];
        }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            let h = rms_norm(x, attn_norm, eps);
            x += rms_norm(attend(h), attn_post, eps);
            let h = rms_norm(x, ffn_norm, eps);
            let h = up(h);
            x += rms_norm(down(silu(h[..n_ff]) * h[n_ff..]), ffn_post, eps);
        }
        output(rms_norm(x, output_norm, eps))
    }

    test { n_embd: 256, n_head: 2, n_head_kv: 2, n_layer: 2, n_ff: 384, n_vocab: 128 }
}
