//! Input of a vision transformer (ViT) for videos, as in `frame_patches`. The patches of a block are concatenated and
//! projected to rows.

fragment! {
    hparams {
        let joined = n_embd * merge * merge;
    }

    tensors {
        use frame_patches;
        fc1: linear "mm.0" [joined -> joined];
        fc2: linear "mm.2" [joined -> n_out];
    }

    fn blocks(x: [n_embd, T]) {
        merge(group_rows(x, merge * merge))
    }

    fn merged(x: [n_embd, T]) {
        fc2(gelu_erf(fc1(blocks(x))))
    }
}
