//! Manifold-constrained hyper-connections (mHC, arXiv 2512.24880) over several residual streams. `hc_pre`
//! computes a block's input as a weighted sum of the streams. `hc_post` mixes the streams with a doubly
//! stochastic matrix and adds the block's result to each.

fragment! {
    hparams {
        n_stream: usize = "hyper_connection.count";
        n_sinkhorn: usize = "hyper_connection.sinkhorn_iterations";
        stream_eps: f32 = "hyper_connection.epsilon";
        check n_stream == 4, "hyper_connection.count must be 4";
        // The paper uses 20 iterations. The limit bounds the work per token.
        check n_sinkhorn <= 1000, "hyper_connection.sinkhorn_iterations must be at most 1000";
    }

    tensors {
        attn_streams: linear "hc_attn_fn"    [n_stream * n_embd -> (2 + n_stream) * n_stream];
        attn_base:    vector "hc_attn_base"  [(2 + n_stream) * n_stream];
        attn_scale:   vector "hc_attn_scale" [3];
        ffn_streams:  linear "hc_ffn_fn"     [n_stream * n_embd -> (2 + n_stream) * n_stream];
        ffn_base:     vector "hc_ffn_base"   [(2 + n_stream) * n_stream];
        ffn_scale:    vector "hc_ffn_scale"  [3];
    }

    fn hc_pre(x: [n_embd, n_stream, T], weights: [_, T], base: [_], scale: [3]) {
        let w = sigmoid(weights[..n_stream] * scale[..1] + base[..n_stream]) + stream_eps;
        sum_heads(x * heads(w, n_stream))
    }

    fn hc_post(x: [n_embd, n_stream, T], y: [n_embd, T], weights: [_, T], base: [_], scale: [3]) {
        let w = sigmoid(weights[n_stream..2 * n_stream] * scale[1..2] + base[n_stream..2 * n_stream]) * 2.0;
        let mix = weights[2 * n_stream..] * scale[2..] + base[2 * n_stream..];
        repeat_heads(heads(y, 1), n_stream) * heads(w, n_stream)
            + mix_heads(x, sinkhorn(mix, n_stream, n_sinkhorn, stream_eps))
    }
}
