//! Projector of Hunyuan VL: two convolutions merge the patches of a block. A learned row follows each line of blocks,
//! and a learned row precedes and follows the image.

fragment! {
    needs(merge: usize, n_out: usize);

    tensors {
        pre_norm: vector "mm.pre_norm"     [n_embd];
        conv1:    linear "mm.0"            [n_embd * merge * merge -> 2 * n_embd];
        conv2:    linear "mm.2"            [2 * n_embd -> 4 * n_embd];
        newline:  raw    "v.image_newline" [4 * n_embd];
        fc:       linear "mm.model.fc"     [4 * n_embd -> n_out];
        first, last: raw "mm.image_begin", "mm.image_end" [n_out];
        post_norm: vector "mm.post_norm" [n_out];
        ignore "v.view_seperator";
    }

    fn enclosed_lines(x: [n_embd, T]) {
        let x = interleave(merge(group_rows(rms_norm(x, pre_norm, layer_norm_eps), merge * merge)), merge * merge);
        let x = fc(with_newlines(conv2(gelu_erf(conv1(x))), newline, merge));
        rms_norm(join_rows(join_rows(first, x), last), post_norm, layer_norm_eps)
    }
}
