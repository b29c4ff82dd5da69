//! Muse Glimmer: a vision transformer over images of any size. Learned positions are resized to the image, and queries
//! and keys are rotated by columns and rows. In most layers, patches attend to those of their window. The patches of a
//! block are concatenated and projected. The language model normalizes the rows.

arch_macros::encoder! {
    name: "muse-glimmer";
    of: image;

    hparams {
        merge: usize = "spatial_merge_size" or 2;
        max_pixels: usize = "image_max_pixels" or 4096 * patch_size * merge * patch_size * merge;
        n_mid: usize = "projector.hidden_length" or file_rows("mm.0.weight");
        let side = image_size / patch_size / merge / merge;
        let is_windowed = (il + 1) % 4 != 0 && il + 1 != n_layer;
    }

    image {
        size: closest(patch_size * merge, rows = max_pixels / (patch_size * merge * patch_size * merge));
        resize: lanczos;
        patches: patch_size in blocks(merge) of windows(side);
    }

    text { "<|image_start|>", image, "<|image_end|>" }

    tensors {
        use normed_patches;
        post_ln: norm   "v.post_ln" [n_embd];
        fc1:     linear "mm.0"      [n_embd * merge * merge -> n_mid];
        fc2:     linear "mm.1"      [n_mid -> n_mid];
        fc3:     linear "mm.2"      [n_mid -> n_out];
        layer {
            use vit_block(activation = gelu_erf);
        }
    }

    fn placed(x: [head_dim, n_head, T]) { rope_grid(x, 10000.0, pairs = neighbors, columns_first = true) }

    graph {
        let x = normed(resized(position_embd, zeros, transposed = true));
        for layer {
            x += attend(layer_norm(x, ln1), window = chunked(side * merge * side * merge, is_windowed));
            x += ffn(layer_norm(x, ln2));
        }
        fc3(gelu_erf(fc2(gelu_erf(fc1(interleave(merge(group_rows(layer_norm(x, post_ln), merge * merge)), merge * merge))))))
    }

    test {
        n_embd: 64, n_head: 4, n_layer: 5, n_ff: 96, image_size: 64, patch_size: 8, merge: 2, n_out: 64, n_mid: 80, n_pos: 16,
        max_pixels: 20480
    }
}
