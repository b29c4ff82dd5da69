//! MiniCPM-V 2.6, 4.0, and 4.5, MiniCPM-o: SigLIP over images of any size, with the nearest rows of a table of learned
//! positions. Learned queries attend to the patches of an image (a resampler). A large image is also split into tiles.

arch_macros::encoder! {
    name: "resampler";
    of: image;

    hparams {
        image_size: usize = "image_size";
        patch_size: usize = "patch_size";
        n_pos: usize = "context_length" or file_rows("v.position_embd.weight");
    }

    image {
        size: area(image_size, patch_size);
        resize: bicubic;
        patches: patch_size;
    }

    tiles {
        grid: area(image_size, patch_size, tiles = 9);
        overview: first "<image>", image, "</image>";
        tile: "<slice>", image, "</slice>";
        between_rows: "\n";
        whole: "<image>", image, "</image>";
    }

    text { "<image_id>{number}</image_id>", image }

    tensors {
        patch_embd:    linear "v.patch_embd"    [3 * patch_size * patch_size -> n_embd];
        position_embd: vector "v.position_embd" [n_embd, n_pos];
        post_ln:       norm   "v.post_ln"       [n_embd];
        use learned_resampler;
        layer {
            use vit_block;
        }
    }

    graph {
        let x = patch_embd(patches) + resized(position_embd, nearest);
        for layer {
            x += attend(layer_norm(x, ln1));
            x += ffn(layer_norm(x, ln2));
        }
        resampled(layer_norm(x, post_ln))
    }

    test { n_embd: 64, n_head: 4, n_layer: 3, n_ff: 96, image_size: 64, patch_size: 8, n_out: 256, n_pos: 36, n_query: 8 }
}
