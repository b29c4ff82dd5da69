//! dots.ocr: a vision transformer over images of any size, with RMS norms, gated feed-forward networks, and rotation
//! by rows and columns. Patches are normalized twice. The patches of a block are concatenated and projected.

arch_macros::encoder! {
    name: "dots_ocr";
    of: image;

    hparams {
        n_out: usize = "projection_dim";
        patch_size: usize = "patch_size";
        merge: usize = "projector.scale_factor" or 2;
        min_pixels: usize = "image_min_pixels" or 3136;
        max_pixels: usize = "image_max_pixels" or 11289600;
        let unit = patch_size * merge;
    }

    image {
        size: multiple(unit, rows = min_pixels / (unit * unit)..max_pixels / (unit * unit));
        resize: bicubic;
        patches: patch_size in blocks(merge);
    }

    text { "<|img|>", image, "<|endofimg|>" }

    tensors {
        patch_embd: linear "v.patch_embd" [3 * patch_size * patch_size -> n_embd];
        pre_ln, post_ln: vector "v.pre_ln", "mm.post_norm" [n_embd];
        input_norm: norm   "mm.input_norm" [n_embd];
        fc1:        linear "mm.0"          [n_embd * merge * merge -> n_embd * merge * merge];
        fc2:        linear "mm.2"          [n_embd * merge * merge -> n_out];
        layer {
            ln1, ln2: vector [n_embd];
            use vit_attention, gated_ffn;
        }
    }

    fn placed(x: [head_dim, n_head, T]) { rope_grid(x, 10000.0) }

    graph {
        let x = rms_norm(patch_embd(patches), pre_ln, layer_norm_eps);
        for layer {
            x += attend(rms_norm(x, ln1, layer_norm_eps));
            x += ffn(rms_norm(x, ln2, layer_norm_eps));
        }
        let h = layer_norm(rms_norm(x, post_ln, layer_norm_eps), input_norm, 0.000001);
        fc2(gelu_erf(fc1(merge(group_rows(h, merge * merge)))))
    }

    test { n_embd: 64, n_head: 4, n_layer: 3, n_ff: 96, patch_size: 8, merge: 2, n_out: 64, min_pixels: 2048, max_pixels: 20480 }
}
