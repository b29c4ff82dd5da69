//! Block of SAM: attention between the patches of a window, and between all patches in every third layer, and a
//! feed-forward network. Relative positions along both axes are learned.

fragment! {
    needs(n_sam: usize, n_head_sam: usize, n_ff_sam: usize, window: usize, side: usize);

    tensors {
        sam_ln1: norm   "pre_ln"   [n_sam];
        sam_ln2: norm   "post_ln"  [n_sam];
        qkv:     linear "attn.qkv" [n_sam -> 3 * n_sam];
        sam_out: linear "attn.out" [n_sam -> n_sam];
        lin1:    linear "mlp.lin1" [n_sam -> n_ff_sam];
        lin2:    linear "mlp.lin2" [n_ff_sam -> n_sam];
        if (il + 1) % 3 == 0 {
            lines, columns: vector "attn.pos_h", "attn.pos_w" [n_sam / n_head_sam, 2 * side - 1];
        } else {
            near_lines, near_columns: vector "attn.pos_h", "attn.pos_w" [n_sam / n_head_sam, 2 * window - 1];
        }
    }

    fn through_sam(x: [n_sam, T]) {
        let x = x + attend_with_places(layer_norm(x, sam_ln1, 0.000001));
        x + lin2(gelu_erf(lin1(layer_norm(x, sam_ln2, 0.000001))))
    }

    fn attend_with_places(x: [n_sam, T]) {
        if (il + 1) % 3 == 0 { sam_out(to_all(qkv(x))) } else { from_windows(sam_out(to_near(qkv(in_windows(x, window)))), window) }
    }

    fn to_all(x: [3 * n_sam, T]) {
        grid_attention(third(x[..n_sam]), third(x[n_sam..2 * n_sam]), third(x[2 * n_sam..]), lines, columns)
    }

    fn to_near(x: [3 * n_sam, _]) {
        grid_attention(third(x[..n_sam]), third(x[n_sam..2 * n_sam]), third(x[2 * n_sam..]), near_lines, near_columns, window)
    }

    fn third(x: [n_sam, _]) { heads(x, n_head_sam) }
}
