//! Projector with learned queries for each window of patches. Each query is added to the mean of a block of patches,
//! or to one patch of the block. The results of all projectors but the first are features.

fragment! {
    needs(
        factor: usize, per_window: usize, window: usize, n_kept: usize, n_head_proj: usize, n_ff_proj: usize
    );

    tensors {
        image_pos:  raw  "img_pos"   [n_embd, window];
        query:      raw  "query"     [n_embd, per_window];
        proj_norm:  norm "norm"      [n_embd];
        query_norm: norm "post_norm" [n_embd];
        use qformer_block;
        if il > 0 {
            linear: linear "linear" [n_embd -> n_out];
        }
    }

    fn with_windows(base: [n_embd, _], x: [n_embd, T]) {
        let x = layer_norm(x, proj_norm, 0.000001);
        let y = sampled(x, factor * factor, spatial_offsets, il) + repeat_rows(query, x, window);
        let y = to_queries(layer_norm(y, query_norm, 0.000000000001));
        let y = to_window(y, x + repeat_rows(in_blocks(image_pos, factor), x, window));
        if il > 0 { beside(base, linear(y)) } else { y }
    }
}
