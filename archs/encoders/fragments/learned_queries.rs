//! Learned queries for each window of columns, and the projection of their results.

fragment! {
    hparams {
        n_out: usize = "projection_dim";
        window: usize = "projector.window_size";
        rate: usize = "projector.downsample_rate";
        n_head_proj: usize = "projector.head_count";
        n_ff_proj: usize = "projector.feed_forward_length" or file_rows("a.proj_blk.0.ffn_up.weight");
        // Index of the layer whose input is concatenated before the output, if any.
        kept_layers: [usize; 0..] = "feature_layer";
        let n_kept = count(kept_layers);
        let kept_layer = first(kept_layers);
        check n_kept <= 1 && kept_layer < n_layer, "feature_layer must contain at most one layer";
        let per_window = window / rate;
        check rate > 0 && window > 0 && window % max(rate, 1) == 0 && window <= 4096,
              "projector.window_size must be a multiple of projector.downsample_rate and at most 4096";
        check n_head_proj > 0 && n_embd % n_head_proj == 0, "projector.head_count must divide embedding_length";
    }

    tensors {
        query:      raw    "a.proj_query"  [n_embd, per_window];
        query_norm: norm   "a.proj_norm"   [n_embd];
        projected:  linear "a.proj_linear" [n_embd -> n_out];
    }

    fn first_queries(x: [n_embd * (n_kept + 1), _]) {
        repeat_rows(layer_norm(query, query_norm, 0.000000000001), x, window)
    }
}
