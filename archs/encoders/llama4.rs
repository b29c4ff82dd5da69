//! Llama 4: a vision transformer with a class token over square images of one size. Queries and keys are rotated by
//! columns and rows. The patches of a block are concatenated (pixel shuffle) and projected. A large image is split
//! into squares, followed by the whole image.

arch_macros::encoder! {
    name: "llama4";
    of: image;

    hparams {
        merge: usize = "projector.scale_factor" or 2;
    }

    image {
        size: fixed(image_size);
        resize: bilinear;
        patches: patch_size in blocks(merge);
        class: last;
    }

    tiles {
        grid: canvas(image_size, tiles = 16);
        between: "<|tile_x_separator|>";
        between_rows: "<|tile_y_separator|>";
        overview: last "<|tile_y_separator|><|image|>";
        whole: "<|image|>";
    }

    text { "<|image_start|>", image, "<|image_end|>" }

    tensors {
        use vit_class;
        pre_ln, post_ln: norm "v.pre_ln", "v.post_ln" [n_embd];
        use shuffled_mlp;
        layer {
            use vit_block(activation = gelu_erf);
        }
    }

    fn placed(x: [head_dim, n_head, T]) { rope_grid(x, 10000.0, pairs = neighbors, columns_first = true) }

    graph {
        let x = embedded_patches();
        let x = layer_norm(x, pre_ln);
        for layer {
            x += attend(layer_norm(x, ln1));
            x += ffn(layer_norm(x, ln2));
        }
        shuffled_mlp(without_class(layer_norm(x, post_ln)))
    }

    test { n_embd: 64, n_head: 4, n_layer: 3, n_ff: 96, image_size: 48, patch_size: 8, merge: 2, n_out: 64, n_mid: 80 }
}
