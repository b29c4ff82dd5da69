//! Youtu-VL: SigLIP 2 with rotary instead of learned positions. In most layers, patches attend to those of their
//! window. The patches of a block are normalized again, concatenated, and projected.

arch_macros::encoder! {
    name: "youtuvl";
    of: image;

    hparams {
        n_out: usize = "projection_dim";
        patch_size: usize = "patch_size";
        merge: usize = "spatial_merge_size" or 2;
        window_size: usize = "window_size";
        is_whole: listed = "wa_layer_indexes";
        let unit = patch_size * merge;
        let side = window_size / unit;
        max_pixels: usize = "image_max_pixels" or 9216 * unit * unit;
    }

    image {
        size: stepped(unit, rows = max_pixels / (unit * unit));
        resize: bilinear;
        patches: patch_size in blocks(merge) of windows(side);
    }

    text { "<|vision_start|>", image, "<|vision_end|>" }

    tensors {
        patch_embd: linear "v.patch_embd"  [3 * patch_size * patch_size -> n_embd];
        post_ln:    norm   "v.post_ln"     [n_embd];
        input_norm: vector "mm.input_norm" [n_embd];
        fc1:        linear "mm.0"          [n_embd * merge * merge -> n_embd * merge * merge];
        fc2:        linear "mm.2"          [n_embd * merge * merge -> n_out];
        layer {
            use vit_block;
        }
    }

    fn placed(x: [head_dim, n_head, T]) { rope_grid(x, 10000.0) }

    graph {
        let x = patch_embd(interleave(patches, 3)); // Files have the colors of a pixel next to each other.
        for layer {
            x += attend(layer_norm(x, ln1), window = chunked(side * merge * side * merge, !is_whole));
            x += ffn(layer_norm(x, ln2));
        }
        fc2(gelu_erf(fc1(merge(group_rows(rms_norm(layer_norm(x, post_ln), input_norm, 0.000001), merge * merge)))))
    }

    test { n_embd: 64, n_head: 4, n_layer: 3, n_ff: 96, patch_size: 8, merge: 2, n_out: 64, window_size: 48, max_pixels: 20480 }
}
