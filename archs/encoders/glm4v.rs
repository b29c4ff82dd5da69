//! GLM-4.1V: a vision transformer over images of any size. Learned positions are resized to the image, and queries and
//! keys are rotated by rows and columns. The patches of a block are concatenated, projected, and passed through a
//! gated network.

arch_macros::encoder! {
    name: "glm4v";
    of: image;

    hparams {
        image_size: usize = "image_size";
        let side = image_size / patch_size;
    }

    image {
        size: multiple(patch_size * merge, rows = 8..4096);
        resize: bicubic;
        patches: patch_size in blocks(merge);
        positions: axes;
    }

    text { "<|begin_of_image|>", image, "<|end_of_image|>" }

    tensors {
        use frame_patches, rows_mlp;
        embd_norm:     vector "v.norm_embd"     [n_embd];
        position_embd: vector "v.position_embd" [n_embd, side * side];
        post_ln:       vector "v.post_ln"       [n_embd];
        merger:        linear "mm.patch_merger" [n_embd * merge * merge -> n_out];

        layer {
            ln1, ln2: vector [n_embd];
            use vit_attention, gated_ffn(width = n_out);
        }
    }

    fn placed(x: [head_dim, n_head, T]) { rope_grid(x, 10000.0) }

    graph {
        let x = rms_norm(embedded_frames(), embd_norm, layer_norm_eps) + resized(position_embd, bicubic);
        for layer {
            x += attend(rms_norm(x, ln1, layer_norm_eps));
            x += ffn(rms_norm(x, ln2, layer_norm_eps));
        }
        let x = merge(group_rows(rms_norm(x, post_ln, layer_norm_eps), merge * merge));
        rows_mlp(merger(interleave(x, merge * merge)))
    }

    test { n_embd: 64, n_head: 4, n_layer: 3, n_ff: 96, image_size: 40, patch_size: 8, merge: 2, n_out: 64, n_mid: 96 }
}
