//! Phi-3 and Phi-4: a fused gate and up projection, and LongRoPE frequency factors for short and long
//! contexts.

arch_macros::arch! {
    name: "phi3";
    rope: neox;

    hparams {
        eps: f32 = "attention.layer_norm_rms_epsilon";
    }

    tensors {
        use tied_output;
        rope_long?:  vector "rope_factors_long"  [n_rot / 2];
        rope_short?: vector "rope_factors_short" [n_rot / 2];

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
            x += attend(rms_norm(x, attn_norm, eps), short = rope_short, long = rope_long);
            let h = rms_norm(x, ffn_norm, eps);
            let h = up(h);
            x += down(silu(h[..n_ff]) * h[n_ff..]);
        }
        output(rms_norm(x, output_norm, eps))
    }

    test { n_embd: 256, n_head: 2, n_head_kv: 2, n_layer: 2, n_ff: 384, n_vocab: 128 }
}
