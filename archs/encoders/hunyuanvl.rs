//! Hunyuan VL (HunyuanOCR): a vision transformer over images of any size, whose learned positions are resized to the
//! image. Blocks of patches are projected to lines that end with a learned row.

arch_macros::encoder! {
    name: "hunyuanvl";
    of: image;

    hparams {
        n_out: usize = "projection_dim";
        image_size: usize = "image_size";
        patch_size: usize = "patch_size";
        merge: usize = "spatial_merge_size" or 2;
        min_pixels: usize = "image_min_pixels" or 262144;
        max_pixels: usize = "image_max_pixels" or 4194304;
        let side = image_size / patch_size;
        let unit = patch_size * merge;
    }

    image {
        size: multiple(unit, rows = min_pixels / (unit * unit)..max_pixels / (unit * unit));
        resize: bicubic;
        patches: patch_size in blocks(merge);
        positions: xd;
    }

    text { "<｜hy_place▁holder▁no▁100｜>", image, "<｜hy_place▁holder▁no▁101｜>" }

    tensors {
        patch_embd:    linear "v.patch_embd"    [3 * patch_size * patch_size -> n_embd];
        position_embd: vector "v.position_embd" [n_embd, side * side];
        use enclosed_lines;
        layer {
            use vit_block(activation = gelu_erf);
        }
    }

    graph {
        let x = patch_embd(patches) + resized(position_embd, dino);
        for layer {
            x += attend(layer_norm(x, ln1));
            x += ffn(layer_norm(x, ln2));
        }
        enclosed_lines(x)
    }

    test {
        n_embd: 64, n_head: 4, n_layer: 3, n_ff: 96, image_size: 64, patch_size: 8, merge: 2, n_out: 64, min_pixels: 2048, max_pixels: 20480
    }
}
