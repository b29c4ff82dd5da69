//! Patches of the two frames of a video, projected to the width of the encoder. An image is used as both frames.
//! `merge` is the side of a block of patches.

fragment! {
    hparams {
        n_out: usize = "projection_dim";
        patch_size: usize = "patch_size";
        merge: usize = "spatial_merge_size" or 2;
    }

    tensors {
        first_frame:  linear "v.patch_embd"          [3 * patch_size * patch_size -> n_embd];
        second_frame: raw    "v.patch_embd.weight.1" [3 * patch_size * patch_size, n_embd];
    }

    fn embedded_frames() {
        first_frame(patches) + matmul(second_frame, patches)
    }
}
