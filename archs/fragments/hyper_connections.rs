//! Several residual streams (manifold-constrained hyper-connections, arXiv 2512.24880): each block reads a mixture of them, and its result
//! is added to all, which are mixed among themselves by a matrix with sums of 1.

fragment! {
    hparams {
        n_stream: usize = "hyper_connection.count";
        n_balance: usize = "hyper_connection.sinkhorn_iterations";
        stream_eps: f32 = "hyper_connection.epsilon";
        check n_stream == 4, "hyper_connection.count is 4";
    }

    tensors {
        attn_streams: linear "hc_attn_fn"    [n_stream * n_embd -> (2 + n_stream) * n_stream];
        attn_base:    vector "hc_attn_base"  [(2 + n_stream) * n_stream];
        attn_scale:   vector "hc_attn_scale" [3];
        ffn_streams:  linear "hc_ffn_fn"     [n_stream * n_embd -> (2 + n_stream) * n_stream];
        ffn_base:     vector "hc_ffn_base"   [(2 + n_stream) * n_stream];
        ffn_scale:    vector "hc_ffn_scale"  [3];
    }

    fn hc_pre(x, weights, base, scale) {
        let w = sigmoid(weights[..n_stream] * scale[..1] + base[..n_stream]) + stream_eps;
        sum_heads(x * heads(w, n_stream))
    }

    fn hc_post(x, y, weights, base, scale) {
        let w = sigmoid(weights[n_stream..2 * n_stream] * scale[1..2] + base[n_stream..2 * n_stream]) * 2.0;
        let mix = weights[2 * n_stream..] * scale[2..] + base[2 * n_stream..];
        repeat_heads(heads(y, 1), n_stream) * heads(w, n_stream)
            + mix_heads(x, balance(mix, n_stream, n_balance, stream_eps))
    }
}
