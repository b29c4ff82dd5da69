//! Projectors with learned queries for each window of patches. Declares their sizes, the matrix of the first projector,
//! and the row after each line of a split image.

fragment! {
    hparams {
        query_side: usize = "projector.query_side";
        window_side: usize = "projector.window_side";
        // Index of the layer that each projector reads.
        feature_layers: [usize; 1..] = "feature_layer";
        // Index of the patch in its block that each projector reads, or -1 for the mean of the block.
        spatial_offsets: [usize; 1..] = "projector.spatial_offsets";
        n_ff_proj: usize = "projector.feed_forward_length" or file_rows("v.proj_blk.0.ffn_up.weight");
        let factor = window_side / query_side;
        let per_window = query_side * query_side;
        let window = factor * factor * per_window;
        let n_proj = count(feature_layers);
        let n_offsets = count(spatial_offsets);
        let twice_last = max_sum(feature_layers, feature_layers, n_proj);
        let n_head_proj = n_embd / 64;
        let n_kept = 0;
        check query_side > 0 && factor * query_side == window_side, "projector.window_side must be a multiple of projector.query_side";
        check n_head_proj > 0 && n_embd % n_head_proj == 0 && n_head_proj * 64 == n_embd, "embedding_length must be a multiple of 64";
        check n_offsets == n_proj, "projector.spatial_offsets must have an element for each of feature_layer";
        check twice_last < 2 * n_layer, "feature_layer must contain indices of layers";
    }

    tensors {
        base_linear:    linear "v.proj_blk.0.linear" [n_embd -> n_out];
        image_newline?: raw    "v.image_newline"     [n_out];
        ignore "v.post_ln";
    }
}
