//! Apertus: the xIELU activation, whose curves differ by layer, in a feed-forward without gate; norms per query and key head.

arch_macros::arch! {
    name: "apertus";
    rope: neox;

    hparams {
        eps: f32 = "attention.layer_norm_rms_epsilon";
        kq_factor: f32 = "attention.scale" or 0.0;
        alpha_n: [f32] = "/xielu.alpha_n";
        alpha_p: [f32] = "/xielu.alpha_p";
        beta: [f32] = "/xielu.beta";
        guard: [f32] = "/xielu.eps";
        // A factor of 0 says that there is none.
        let kq_scale = if kq_factor == 0.0 { 1.0 / sqrt(head_dim) } else { kq_factor };
        // The trained parameters become slopes through softplus, which keeps them positive.
        let slope_n = beta + ln(1.0 + exp(alpha_n));
        let slope_p = ln(1.0 + exp(alpha_p));
        // It replaces inputs just below 0 in training in low precision; the exponential here needs no such guard.
        check guard < 0.001 && guard > -0.001, "xielu.eps is a rounding guard close to 0";
    }

    tensors {
        use own_output;
        rope_freqs?: vector "rope_freqs" [n_rot / 2];
        // Files may carry these; the graph has no use for them.
        ignore "attn_q_norm.bias", "attn_k_norm.bias", "ffn_up.scale", "ffn_down.scale";
        ignore "attn_q.input_scale", "attn_k.input_scale", "attn_v.input_scale", "attn_output.input_scale";
        ignore "ffn_up.input_scale", "ffn_down.input_scale";

        layer {
            attn_norm, ffn_norm: vector [n_embd];
            use qk_norm_attention;
            use plain_ffn;
        }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            x += attend(rms_norm(x, attn_norm, eps), factors = rope_freqs, scale = kq_scale);
            let h = up(rms_norm(x, ffn_norm, eps));
            // xIELU: a parabola above 0, an exponential below, each with its slope.
            let above = relu(h);
            let below = h - above;
            x += down(sqr(above) * slope_p + (exp(below) - 1.0 - below) * slope_n + h * beta);
        }
        output(rms_norm(x, output_norm, eps))
    }

    test { n_embd: 256, n_head: 2, n_head_kv: 2, n_layer: 2, n_ff: 384, n_vocab: 128 }
}
