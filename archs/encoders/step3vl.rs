//! Step3-VL: a vision transformer over squares. Learned positions are resized to the image, and queries and keys are
//! rotated by columns and rows. Two convolutions follow. Squares of an image are resized to smaller tiles, which
//! precede the whole image.

arch_macros::encoder! {
    name: "step3vl";
    of: image;

    hparams {
        tile_size: usize = "preproc_tile_size" or 504;
        max_size: usize = "preproc_image_size" or 3024;
        check image_size % (4 * patch_size) == 0 && tile_size % (4 * patch_size) == 0, "images and tiles must be multiples of 4 patches";
    }

    image {
        size: fixed(image_size);
        resize: bilinear;
        patches: patch_size;
    }

    tiles {
        grid: windows(tile_size, image_size, max_size);
        tile: "<patch_start>", image, "<patch_end>";
        between_rows: "<patch_newline>";
        overview: last "<im_start>", image, "<im_end>";
        whole: "<im_start>", image, "<im_end>";
    }

    text { image }

    tensors {
        use normed_patches, convolved_rows;
        layer {
            use vit_block(activation = gelu_quick), layer_scale;
        }
    }

    fn placed(x: [head_dim, n_head, T]) { rope_grid(x, 10000.0, pairs = neighbors, columns_first = true) }

    graph {
        let x = normed(resized(position_embd, bilinear));
        for layer {
            x += ls1 * attend(layer_norm(x, ln1));
            x += ls2 * ffn(layer_norm(x, ln2));
        }
        convolved(x)
    }

    test { n_embd: 64, n_head: 4, n_layer: 3, n_ff: 96, image_size: 64, patch_size: 4, n_out: 64, n_pos: 144, tile_size: 48, max_size: 144 }
}
