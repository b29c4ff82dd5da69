//! Mellum 2: windows in all but every fourth layer, which alone stretch their rotation; RMS norms on each query and key
//! head, softmax routing with normalized weights.

arch_macros::arch! {
    name: "mellum";
    rope: neox;

    hparams {
        eps: f32 = "attention.layer_norm_rms_epsilon";
        n_swa: usize = "attention.sliding_window" or 0;
        is_swa: pattern = "attention.sliding_window_pattern" or 4;
        n_ff_exp: [usize] = "expert_feed_forward_length";
        let windowed = n_swa > 0 && is_swa;
    }

    tensors {
        use own_output;

        layer {
            attn_norm, ffn_norm: vector [n_embd];
            use qk_norm_attention;
            use experts(width = n_ff_exp);
        }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            let h = rms_norm(x, attn_norm, eps);
            let q = rms_norm(heads(wq(h), n_head), q_norm, eps);
            let k = rms_norm(heads(wk(h), n_head_kv), k_norm, eps);
            if windowed {
                q = rope(q, scale = 1.0, magnitude = 1.0, yarn = false);
                k = rope(k, scale = 1.0, magnitude = 1.0, yarn = false);
            } else {
                q = rope(q);
                k = rope(k);
            }
            let v = heads(wv(h), n_head_kv);
            x += wo(attention(q, k, v, window = standard(n_swa, windowed)));
            x += routed(rms_norm(x, ffn_norm, eps));
        }
        output(rms_norm(x, output_norm, eps))
    }

    test { n_embd: 256, n_head: 2, n_layer: 2, n_ff: 384, n_vocab: 128, n_expert: 2, n_expert_used: 2, n_ff_exp: 384 }
}
