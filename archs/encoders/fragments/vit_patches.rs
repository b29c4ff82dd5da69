//! Input of a vision transformer (ViT): the projected patches of an image, plus a learned embedding for each of the
//! `side * side` positions. `image_size`, `patch_size`, and `n_out` are keys of the file.

fragment! {
    options(side);

    hparams {
        n_out: usize = "projection_dim";
        image_size: usize = "image_size";
        patch_size: usize = "patch_size";
    }

    tensors {
        patch_embd:    linear "v.patch_embd"    [3 * patch_size * patch_size -> n_embd];
        position_embd: embed  "v.position_embd" [n_embd, side * side];
    }

    fn embedded_patches() {
        patch_embd(patches) + position_embd[positions]
    }
}
