//! Block of Gemma's conformer: two feed-forward networks of half weight around attention to the last `window`
//! positions and a causal depthwise convolution. RMS norms precede all parts and follow most of them.

fragment! {
    options(window, taps);

    tensors {
        ffn_norm, ffn_post_norm: vector [n_embd];
        up:   linear "ffn_up"   [n_embd -> n_ff];
        down: linear "ffn_down" [n_ff -> n_embd];

        attn_norm, attn_post_norm: vector "attn_pre_norm", "attn_post_norm" [n_embd];
        wq:      linear "attn_q"        [n_embd -> n_head * head_dim];
        wk:      linear "attn_k"        [n_embd -> n_head * head_dim];
        wv:      linear "attn_v"        [n_embd -> n_head * head_dim];
        wo:      linear "attn_out"      [n_head * head_dim -> n_embd];
        k_rel:   linear "attn_k_rel"    [n_embd -> n_head * head_dim];
        q_scale: vector "per_dim_scale" [head_dim];

        // Files store these two norms under swapped names.
        conv_norm:      vector "conv_norm" [n_embd];
        pw1:            linear "conv_pw1"  [n_embd -> 2 * n_embd];
        conv_dw:        vector "conv_dw"   [taps, n_embd];
        conv_post_norm: vector "norm_conv" [n_embd];
        pw2:            linear "conv_pw2"  [n_embd -> n_embd];

        ffn_norm_1, ffn_post_norm_1: vector [n_embd];
        up_1:     linear "ffn_up_1"   [n_embd -> n_ff];
        down_1:   linear "ffn_down_1" [n_ff -> n_embd];
        out_norm: vector "ln2"        [n_embd];
    }

    fn first_ffn(x: [n_embd, _]) {
        rms_norm(down(silu(up(rms_norm(x, ffn_norm, 0.000001)))), ffn_post_norm, 0.000001) * 0.5
    }

    fn last_ffn(x: [n_embd, _]) {
        rms_norm(down_1(silu(up_1(rms_norm(x, ffn_norm_1, 0.000001)))), ffn_post_norm_1, 0.000001) * 0.5
    }

    fn attend_near(x: [n_embd, _]) {
        let h = rms_norm(x, attn_norm, 0.000001);
        // Queries are divided by ln 2 and keys are multiplied by softplus(1) / ln 2.
        let q = heads(wq(h), n_head) * q_scale * (1.4426950408889634 / sqrt(head_dim));
        let k = heads(wk(h), n_head) * 1.8946361239720115;
        let relative = k_rel(sinusoids(n_embd, window - 1, 0));
        let y = local_attention(q, k, heads(wv(h), n_head), relative, window - 1, scale = 1.0, softcap = 50.0);
        rms_norm(wo(y), attn_post_norm, 0.000001)
    }

    fn convolve(x: [n_embd, _]) {
        let h = pw1(rms_norm(x, conv_norm, 0.000001));
        let h = depthwise(h[0..n_embd] * sigmoid(h[n_embd..n_embd * 2]), conv_dw, taps - 1);
        pw2(silu(rms_norm(h, conv_post_norm, 0.000001)))
    }
}
