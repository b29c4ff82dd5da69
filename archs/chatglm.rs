//! ChatGLM 3 and GLM-4 9B: a fused gate and up projection, and rotary positions on half of each head.

arch_macros::arch! {
    name: "chatglm";
    rope: norm;

    hparams {
        eps: f32 = "attention.layer_norm_rms_epsilon";
    }

    tensors {
        use tied_output;

        layer {
            attn_norm, ffn_norm: vector [n_embd];
            use self_attention;
            up:   linear "ffn_up"   [n_embd -> 2 * n_ff]; // rows of the gate, then of the up projection
            down: linear "ffn_down" [n_ff -> n_embd];
        }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            x += attend(rms_norm(x, attn_norm, eps));
            let h = rms_norm(x, ffn_norm, eps);
            let h = up(h);
            x += down(silu(h[..n_ff]) * h[n_ff..]);
        }
        output(rms_norm(x, output_norm, eps))
    }

    test { n_embd: 256, n_head: 2, n_head_kv: 2, n_layer: 2, n_ff: 384, n_vocab: 128 }
}
