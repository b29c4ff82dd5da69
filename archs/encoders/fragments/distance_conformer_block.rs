//! Block of NeMo's conformers: two feed-forward networks of half weight around attention with relative positions
//! (Transformer-XL) and a depthwise convolution.

fragment! {
    hparams {
        taps: usize = "conv_kernel_size" or 9;
        // In files of LFM2 Audio, the key of the feed-forward size has a wrong value.
        width: usize = "conformer.feed_forward_length" or file_rows("a.blk.0.ffn_up.weight");
    }

    tensors {
        ffn_norm, ffn_norm_1: norm [n_embd];
        up:     linear "ffn_up"     [n_embd -> width];
        down:   linear "ffn_down"   [width -> n_embd];
        up_1:   linear "ffn_up_1"   [n_embd -> width];
        down_1: linear "ffn_down_1" [width -> n_embd];

        ln1, ln2: norm [n_embd];
        wq:            linear "attn_q"     [n_embd -> n_head * head_dim];
        wk:            linear "attn_k"     [n_embd -> n_head * head_dim];
        wv:            linear "attn_v"     [n_embd -> n_head * head_dim];
        wo:            linear "attn_out"   [n_head * head_dim -> n_embd];
        of_distance:   linear "linear_pos" [n_embd -> n_head * head_dim];
        content_bias:  raw    "pos_bias_u" [head_dim, n_head];
        distance_bias: raw    "pos_bias_v" [head_dim, n_head];

        conv_norm:  norm   "norm_conv"      [n_embd];
        pw1:        linear "conv_pw1"       [n_embd -> 2 * n_embd];
        conv_dw:    vector "conv_dw"        [taps, n_embd];
        conv_bias?: raw    "conv_dw.bias"   [n_embd];
        mean?:      raw    "conv_norm_mean" [n_embd];
        variance?:  raw    "conv_norm_var"  [n_embd];
        conv_scale: vector "conv_norm"      [n_embd];
        conv_shift: raw    "conv_norm.bias" [n_embd];
        pw2:        linear "conv_pw2"       [n_embd -> n_embd];
    }

    fn conformer(x: [n_embd, _], distances: [n_embd, _]) {
        let x = x + down(silu(up(layer_norm(x, ffn_norm)))) * 0.5;
        let x = x + attend_all(layer_norm(x, ln1), distances);
        let x = x + convolve(layer_norm(x, conv_norm));
        layer_norm(x + down_1(silu(up_1(layer_norm(x, ffn_norm_1)))) * 0.5, ln2)
    }

    fn attend_all(h: [n_embd, _], distances: [n_embd, _]) {
        let q = heads(wq(h), n_head);
        let k = heads(wk(h), n_head);
        let v = heads(wv(h), n_head);
        wo(distance_attention(q, k, v, of_distance(distances), content_bias, distance_bias))
    }

    fn convolve(h: [n_embd, _]) {
        let h = pw1(h);
        let h = depthwise(h[0..n_embd] * sigmoid(h[n_embd..n_embd * 2]), conv_dw, taps / 2);
        let h = if has(conv_bias) { h + conv_bias } else { h };
        let h = if has(mean) && has(variance) { batch_norm(h, mean, variance, 0.00001) } else { h };
        pw2(silu(h * conv_scale + conv_shift))
    }
}
