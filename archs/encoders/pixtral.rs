//! Pixtral and Mistral 3: a vision transformer over images of any size. Queries and keys are rotated by rows and
//! columns. Mistral 3 merges the patches of a block. A token follows each row of an image except the last.

arch_macros::encoder! {
    name: "pixtral";
    of: image;

    hparams {
        n_out: usize = "projection_dim";
        image_size: usize = "image_size";
        patch_size: usize = "patch_size";
        merge: usize = "spatial_merge_size" or 1;
    }

    image {
        size: longest(image_size, patch_size * merge);
        resize: bicubic;
        patches: patch_size in blocks(merge);
        between_rows: "[IMG_BREAK]";
    }

    text { image, "[IMG_END]" }

    tensors {
        patch_embd: linear "v.patch_embd" [3 * patch_size * patch_size -> n_embd];
        pre_ln:     vector "v.pre_ln"     [n_embd];
        use patch_merger;
        fc1: linear "mm.1" [n_embd -> n_out];
        fc2: linear "mm.2" [n_out -> n_out];
        ignore "v.token_embd.img_break";

        layer {
            ln1, ln2: vector [n_embd];
            use vit_attention, gated_ffn;
        }
    }

    fn placed(x: [head_dim, n_head, T]) { rope_grid(x, 10000.0, pairs = neighbors, spread = true) }

    graph {
        let x = rms_norm(patch_embd(patches), pre_ln, layer_norm_eps);
        for layer {
            x += attend(rms_norm(x, ln1, layer_norm_eps));
            x += ffn(rms_norm(x, ln2, layer_norm_eps));
        }
        fc2(gelu_erf(fc1(joined(x))))
    }

    test { n_embd: 64, n_head: 4, n_layer: 3, n_ff: 96, image_size: 144, patch_size: 8, merge: 2, n_out: 64 }
}
