//! Apertus: xIELU activation with trained parameters per layer in a feed-forward network without a gate. RMS
//! norms per query and key head.

arch_macros::arch! {
    name: "apertus";
    rope: neox;

    hparams {
        kq_factor: f32 = "attention.scale" or 0.0;
        alpha_n: [f32] = "/xielu.alpha_n";
        alpha_p: [f32] = "/xielu.alpha_p";
        beta: [f32] = "/xielu.beta";
        guard: [f32] = "/xielu.eps";
        // A factor of 0 selects the default scale `1 / sqrt(head_dim)`.
        let kq_scale = if kq_factor == 0.0 { 1.0 / sqrt(head_dim) } else { kq_factor };
        // Softplus turns the trained parameters into positive slopes.
        let slope_n = beta + ln(1.0 + exp(alpha_n));
        let slope_p = ln(1.0 + exp(alpha_p));
        // In low-precision training, this value replaces inputs just below 0. The exponential used here needs
        // no such guard.
        check guard < 0.001 && guard > -0.001, "xielu.eps must be close to 0";
    }

    tensors {
        use untied_output;
        rope_freqs?: vector "rope_freqs" [n_rot / 2];
        // Optional tensors that the graph does not use.
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
            x += attend(rms_norm(x, attn_norm), factors = rope_freqs, scale = kq_scale);
            let h = up(rms_norm(x, ffn_norm));
            // xIELU: a parabola for positive inputs and an exponential for negative inputs, each with its own
            // slope.
            let above = relu(h);
            let below = h - above;
            x += down(sqr(above) * slope_p + (exp(below) - 1.0 - below) * slope_n + h * beta);
        }
        output(rms_norm(x, output_norm))
    }

    test { n_embd: 256, n_head: 2, n_head_kv: 2, n_layer: 2, n_ff: 384, n_vocab: 128 }
}
