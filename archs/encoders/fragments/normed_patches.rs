//! Patches of an image of any size, projected to the width of the encoder, and a square table of learned positions. A
//! layer norm follows their sum.

fragment! {
    hparams {
        n_out: usize = "projection_dim";
        image_size: usize = "image_size";
        patch_size: usize = "patch_size";
        n_pos: usize = "context_length" or file_rows("v.position_embd.weight");
    }

    tensors {
        patch_embd:    linear "v.patch_embd"    [3 * patch_size * patch_size -> n_embd];
        position_embd: vector "v.position_embd" [n_embd, n_pos];
        pre_ln:        norm   "v.pre_ln"        [n_embd];
    }

    fn normed(x: [n_embd, T]) { layer_norm(patch_embd(patches) + x, pre_ln) }
}
