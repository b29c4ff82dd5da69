//! CLIP over features in place of patches: a learned column and the features, plus learned positions that are resized
//! to the grid of features. The outputs and the features are concatenated and projected. Files store a different
//! `feed_forward_length`.

fragment! {
    hparams {
        n_pos: usize = "context_length" or file_rows("v.position_embd.weight");
        n_ff_clip: usize = "clip.feed_forward_length" or file_rows("v.blk.0.ffn_up.weight");
    }

    tensors {
        class_embd:    raw    "v.class_embd"    [n_embd];
        position_embd: vector "v.position_embd" [n_embd, n_pos];
        pre_ln:        norm   "v.pre_ln"        [n_embd];
        fc:            linear "mm.model.fc"     [2 * n_embd -> n_out];
        image_newline, view_separator: raw "v.image_newline", "v.view_seperator" [n_out];
        ignore "v.patch_embd";
    }

    fn embedded_features(x: [n_embd, _]) {
        let x = join_rows(class_embd + row(position_embd, 0), x + resized_to(position_embd, x, 1, smooth_bicubic));
        layer_norm(x, pre_ln, 0.00001)
    }
}
