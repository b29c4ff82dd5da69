//! Input of SigLIP 2: the patches of an image of any size, projected to the width of the encoder. The rows of a
//! square table of learned positions, resized to the image, are added.

fragment! {
    hparams {
        n_out: usize = "projection_dim";
        patch_size: usize = "patch_size";
        n_pos: usize = "context_length" or file_rows("v.position_embd.weight");
    }

    tensors {
        patch_embd:    linear "v.patch_embd"    [3 * patch_size * patch_size -> n_embd];
        position_embd: vector "v.position_embd" [n_embd, n_pos];
        post_ln:       norm   "v.post_ln"       [n_embd];
    }

    fn embedded_patches() {
        patch_embd(patches) + resized(position_embd, smooth)
    }
}
