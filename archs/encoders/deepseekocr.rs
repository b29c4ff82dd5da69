//! DeepSeek-OCR: SAM over squares, four convolutions, and CLIP over their results. Both outputs are concatenated and
//! projected. A large image is also split into smaller tiles, which precede the whole image. Learned rows follow each
//! line and end the image.

arch_macros::encoder! {
    name: "deepseekocr";
    of: image;

    image {
        size: contained(side * patch);
        resize: bicubic;
        patches: patch;
    }

    tiles {
        grid: lines(tile_size, tiles = min_tiles..max_tiles, newline = "v.image_newline", end = "v.view_seperator");
        overview: last "";
    }

    text { image, "\n" }

    tensors {
        use sam_neck, clip_over_features;
        layer {
            use column_block(activation = gelu_quick, width = n_ff_clip);
        }
        layer sam "v.sam.blk" n_layer_sam {
            use sam_block;
        }
    }

    graph {
        let x = sam_patches();
        for sam {
            x = through_sam(x);
        }
        let features = sam_features(x);
        let x = embedded_features(features);
        for layer {
            x += attend_all(layer_norm(x, ln1, 0.00001));
            x += ffn(layer_norm(x, ln2, 0.00001));
        }
        fc(concat(drop_rows(x, 1), features))
    }

    test {
        n_embd: 64, n_head: 4, n_layer: 2, n_ff: 96, n_ff_clip: 96, n_out: 64, n_sam: 48, n_head_sam: 3, n_layer_sam: 3, n_ff_sam: 80,
        n_neck: 16, n_net: 24, side: 16, window: 5, patch: 4, n_pos: 10, tile_size: 48, min_tiles: 2, max_tiles: 4
    }
}
