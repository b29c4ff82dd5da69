//! Combines the residual streams of hyper-connections after the last layer by token-dependent weights.

fragment! {
    needs(n_stream: usize, stream_eps: f32);

    tensors {
        head_streams: linear "output_hc_fn"    [n_stream * n_embd -> n_stream];
        head_base:    vector "output_hc_base"  [n_stream];
        head_scale:   vector "output_hc_scale" [1];
    }

    fn hc_head(x: [n_embd, n_stream, T]) {
        let weights = head_streams(rms_norm(merge(x)));
        sum_heads(x * heads(sigmoid(weights * head_scale + head_base) + stream_eps, n_stream))
    }
}
