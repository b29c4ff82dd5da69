//! MiniMax M3: a vision transformer over images of any size. Queries and keys are rotated by time, rows, and columns.
//! The time of images is 0. Patches are projected. The patches of a block are concatenated and projected.

arch_macros::encoder! {
    name: "minimax_m3";
    of: image;

    hparams {
        max_pixels: usize = "image_max_pixels" or 451584;
        n_mid: usize = "projector.hidden_length" or file_rows("mm.1.weight");
        let unit = patch_size * merge;
        // Number of the values of a head that rotate along an axis.
        let of_axis = n_embd / n_head / 6 * 2;
    }

    image {
        size: multiple(unit, rows = 4..max_pixels / (unit * unit));
        resize: bicubic;
        patches: patch_size in blocks(merge);
    }

    text { "]<]start of image[>[", image, "]<]end of image[>[" }

    tensors {
        use frame_patches;
        pre_ln: norm   "v.pre_ln"      [n_embd];
        fc1:    linear "mm.1"          [n_embd -> n_mid];
        fc2:    linear "mm.2"          [n_mid -> n_out];
        joint1: linear "mm.merger.fc1" [n_out * merge * merge -> n_mid];
        joint2: linear "mm.merger.fc2" [n_mid -> n_out];
        layer {
            use vit_block(activation = gelu_erf);
        }
    }

    fn placed(x: [head_dim, n_head, T]) {
        concat(concat(x[..of_axis], rope_grid(x[of_axis..3 * of_axis], 10000.0, pairs = quarters)), x[3 * of_axis..])
    }

    graph {
        let x = layer_norm(embedded_frames(), pre_ln);
        for layer {
            x += attend(layer_norm(x, ln1));
            x += ffn(layer_norm(x, ln2));
        }
        joint2(gelu_erf(joint1(merge(group_rows(fc2(gelu_erf(fc1(x))), merge * merge)))))
    }

    test { n_embd: 80, n_head: 4, n_layer: 3, n_ff: 96, patch_size: 8, merge: 2, n_out: 64, n_mid: 96, max_pixels: 20480 }
}
