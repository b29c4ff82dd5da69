//! Input of a vision transformer (ViT) with a class token: a learned column and the projected patches of an image. A
//! learned embedding is added at each of the `side * side + 1` positions.

fragment! {
    hparams {
        n_out: usize = "projection_dim";
        image_size: usize = "image_size";
        patch_size: usize = "patch_size";
        let side = image_size / patch_size;
    }

    tensors {
        patch_embd:    linear "v.patch_embd"    [3 * patch_size * patch_size -> n_embd];
        class_embd:    raw    "v.class_embd"    [n_embd];
        position_embd: embed  "v.position_embd" [n_embd, side * side + 1];
    }

    fn embedded_patches() {
        with_class(patch_embd(patches), class_embd) + position_embd[positions]
    }
}
