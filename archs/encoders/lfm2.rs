//! LFM2-VL: SigLIP 2 over images of any size, whose learned positions are resized to the image. The patches of a block
//! are concatenated and projected. A large image is split into squares, followed by the whole image.

arch_macros::encoder! {
    name: "lfm2";
    of: image;

    hparams {
        merge: usize = "projector.scale_factor" or 2;
        let joined = n_embd * merge * merge;
        n_mid: usize = "projector.hidden_length" or file_rows("mm.1.weight");
    }

    image {
        size: multiple(patch_size * merge, rows = 64..256);
        resize: bilinear;
        patches: patch_size in blocks(merge);
    }

    tiles {
        grid: ratio(16 * patch_size * merge, tiles = 2..10);
        above: 2.0;
        tile: "<|img_row_{row}_col_{column}|>";
        overview: last "<|img_thumbnail|>";
    }

    text { "<|image_start|>", image, "<|image_end|>" }

    tensors {
        use resized_patches;
        input_norm?: norm   "mm.input_norm" [joined];
        fc1:         linear "mm.1"          [joined -> n_mid];
        fc2:         linear "mm.2"          [n_mid -> n_out];

        layer {
            use vit_block;
        }
    }

    graph {
        let x = embedded_patches();
        for layer {
            x += attend(layer_norm(x, ln1));
            x += ffn(layer_norm(x, ln2));
        }
        let h = merge(group_rows(layer_norm(x, post_ln), merge * merge));
        fc2(gelu_erf(fc1(if has(input_norm) { layer_norm(h, input_norm, 0.00001) } else { h })))
    }

    test { n_embd: 64, n_head: 4, n_layer: 3, n_ff: 96, patch_size: 4, merge: 2, n_out: 64, n_pos: 36, n_mid: 48 }
}
