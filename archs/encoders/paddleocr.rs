//! PaddleOCR-VL: SigLIP over images of any size. Learned positions are resized to the image, and queries and keys are
//! rotated by rows and columns. The patches of a block are concatenated and projected.

arch_macros::encoder! {
    name: "paddleocr";
    of: image;

    hparams {
        merge: usize = "projector.scale_factor" or 2;
        min_pixels: usize = "image_min_pixels" or 147384;
        max_pixels: usize = "image_max_pixels" or 2822400;
        let joined = n_embd * merge * merge;
        let area = patch_size * merge * patch_size * merge;
    }

    image {
        size: multiple(patch_size * merge, rows = min_pixels / area..max_pixels / area);
        resize: bicubic;
        patches: patch_size in blocks(merge);
        positions: axes;
    }

    text { "<|IMAGE_START|>", image, "<|IMAGE_END|>" }

    tensors {
        use resized_patches;
        input_norm: norm   "mm.input_norm" [n_embd];
        fc1:        linear "mm.1"          [joined -> joined];
        fc2:        linear "mm.2"          [joined -> n_out];

        layer {
            use vit_block;
        }
    }

    fn placed(x: [head_dim, n_head, T]) { rope_grid(x, 10000.0) }

    graph {
        let x = patch_embd(patches) + resized(position_embd, bilinear);
        for layer {
            x += attend(layer_norm(x, ln1));
            x += ffn(layer_norm(x, ln2));
        }
        let h = layer_norm(layer_norm(x, post_ln), input_norm, 0.00001);
        fc2(gelu_erf(fc1(merge(group_rows(h, merge * merge)))))
    }

    test { n_embd: 64, n_head: 4, n_layer: 3, n_ff: 96, patch_size: 8, merge: 2, n_out: 64, n_pos: 36, min_pixels: 2048, max_pixels: 20480 }
}
