//! Learned queries, one for each output of SAM, for the whole image and for tiles, and the projection of their
//! outputs.

fragment! {
    needs(n_out: usize, side: usize, patch: usize, tile_size: usize);

    tensors {
        queries:        vector "v.resample_query_1024" [n_embd, (side / 4) * (side / 4)];
        tile_queries:   vector "v.resample_query_768"  [n_embd, (tile_size / (4 * patch)) * (tile_size / (4 * patch))];
        post_ln:        vector "v.post_ln"             [n_embd];
        fc:             linear "mm.model.fc"           [n_embd -> n_out];
        view_separator: raw    "v.view_seperator"      [n_out];
    }
}
