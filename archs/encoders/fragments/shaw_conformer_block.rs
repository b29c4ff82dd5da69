//! Block of a conformer: two feed-forward networks of half weight around attention within blocks of columns with
//! learned relative positions (Shaw), and a depthwise convolution.

fragment! {
    hparams {
        block: usize = "chunk_size";
        n_dist: usize = "max_pos_emb";
        taps: usize = "conv_kernel_size";
        check block > 0 && block <= n_dist, "chunk_size must be at most max_pos_emb";
    }

    tensors {
        ffn_norm, ffn_norm_1: norm [n_embd];
        up:     linear "ffn_up"     [n_embd -> n_ff];
        down:   linear "ffn_down"   [n_ff -> n_embd];
        up_1:   linear "ffn_up_1"   [n_embd -> n_ff];
        down_1: linear "ffn_down_1" [n_ff -> n_embd];

        ln1, ln2: norm [n_embd];
        wq:       linear "attn_q"           [n_embd -> n_head * head_dim];
        wk:       linear "attn_k"           [n_embd -> n_head * head_dim];
        wv:       linear "attn_v"           [n_embd -> n_head * head_dim];
        wo:       linear "attn_out"         [n_head * head_dim -> n_embd];
        relative: raw    "attn_rel_pos_emb" [head_dim, 2 * n_dist + 1];

        // Files store these two norms under swapped names. The second one is stored as scale and shift.
        conv_norm:  norm   "norm_conv"      [n_embd];
        pw1:        linear "conv_pw1"       [n_embd -> 4 * n_embd];
        conv_dw:    vector "conv_dw"        [taps, 2 * n_embd];
        conv_scale: vector "conv_norm"      [2 * n_embd];
        conv_shift: raw    "conv_norm.bias" [2 * n_embd];
        pw2:        linear "conv_pw2"       [2 * n_embd -> n_embd];
    }

    fn conformer(x: [n_embd, _]) {
        let x = x + first_ffn(x);
        let x = x + attend_block(x);
        let x = x + convolve(x);
        layer_norm(x + last_ffn(x), ln2)
    }

    fn first_ffn(x: [n_embd, _]) {
        down(silu(up(layer_norm(x, ffn_norm)))) * 0.5
    }

    fn last_ffn(x: [n_embd, _]) {
        down_1(silu(up_1(layer_norm(x, ffn_norm_1)))) * 0.5
    }

    fn attend_block(x: [n_embd, _]) {
        let h = layer_norm(x, ln1);
        let near = at_distances(relative, block - 1, block - 1);
        wo(block_attention(heads(wq(h), n_head), heads(wk(h), n_head), heads(wv(h), n_head), block, block, near))
    }

    fn convolve(x: [n_embd, _]) {
        let h = pw1(layer_norm(x, conv_norm));
        let h = depthwise(h[0..n_embd * 2] * sigmoid(h[n_embd * 2..n_embd * 4]), conv_dw, taps / 2);
        pw2(silu(h * conv_scale + conv_shift))
    }
}
