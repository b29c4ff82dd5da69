//! Input of a vision transformer (ViT) for videos: the patches of two frames, projected to the width of the encoder.
//! An image is both frames. Blocks of patches are joined and projected to rows. `merge` is the side of a block.

fragment! {
    hparams {
        n_out: usize = "projection_dim";
        patch_size: usize = "patch_size";
        merge: usize = "spatial_merge_size" or 2;
        let joined = n_embd * merge * merge;
    }

    tensors {
        first_frame:  linear "v.patch_embd"          [3 * patch_size * patch_size -> n_embd];
        second_frame: raw    "v.patch_embd.weight.1" [3 * patch_size * patch_size, n_embd];
        fc1:          linear "mm.0"                  [joined -> joined];
        fc2:          linear "mm.2"                  [joined -> n_out];
    }

    fn embedded_frames() {
        first_frame(patches) + matmul(second_frame, patches)
    }

    fn blocks(x: [n_embd, T]) {
        merge(group_rows(x, merge * merge))
    }

    fn merged(x: [n_embd, T]) {
        fc2(gelu_erf(fc1(blocks(x))))
    }
}
