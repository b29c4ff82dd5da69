//! MiniCPM-V 4.6: SigLIP over images of any size, with the nearest rows of a table of learned positions. After one of
//! the layers, the patches of a block attend to each other and are merged. The merged patches of larger blocks are
//! projected. A large image is also split into tiles.

arch_macros::encoder! {
    name: "minicpmv4_6";
    of: image;

    hparams {
        image_size: usize = "image_size";
    }

    image {
        size: area(image_size, patch_size * side * 2);
        resize: bicubic;
        patches: patch_size in blocks(side) of blocks(2);
    }

    tiles {
        grid: area(image_size, patch_size * side * 2, tiles = 9);
        overview: first "<image>", image, "</image>";
        tile: "<slice>", image, "</slice>";
        between_rows: "\n";
        whole: "<image>", image, "</image>";
    }

    text { "<image_id>{number}</image_id>", image }

    tensors {
        use resized_patches, block_merger, joined_mlp;
        layer {
            use column_block;
        }
    }

    graph {
        let x = patch_embd(patches) + resized(position_embd, nearest);
        for layer in 0..merge_layer + 1 {
            x += attend(layer_norm(x, ln1));
            x += ffn(layer_norm(x, ln2));
        }
        let x = merged_blocks(x);
        for layer in merge_layer + 1..n_layer {
            x += attend_all(layer_norm(x, ln1));
            x += ffn(layer_norm(x, ln2));
        }
        joined_mlp(layer_norm(x, post_ln))
    }

    test { n_embd: 64, n_head: 4, n_layer: 3, n_ff: 96, image_size: 96, patch_size: 4, n_out: 64, n_pos: 36 }
}
