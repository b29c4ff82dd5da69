//! DeepSeek-OCR 2: the SAM of DeepSeek-OCR, and a transformer over its results and a learned query for each result.
//! Queries attend to all results and to earlier queries. A large image is also split into smaller tiles, which precede
//! the whole image. Tiles have separate queries.

arch_macros::encoder! {
    name: "deepseekocr2";
    of: image;

    image {
        size: contained(side * patch);
        resize: bicubic;
        patches: patch;
    }

    tiles {
        grid: lines(tile_size, tiles = min_tiles..max_tiles, end = "v.view_seperator");
        overview: last "";
    }

    text { image, "\n" }

    tensors {
        use sam_neck(tile = 768, most = 6), query_tables;
        layer {
            use prefix_block;
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
        let x = join_rows(features, matching_rows(features, queries, tile_queries));
        for layer {
            x += attend_to_prefix(rms_norm(x, ln1, layer_norm_eps), features);
            x += ffn(rms_norm(x, ln2, layer_norm_eps));
        }
        fc(rms_norm(after_prefix(x, features), post_ln, layer_norm_eps))
    }

    test {
        n_embd: 64, n_head: 4, n_head_kv: 2, n_layer: 2, n_ff: 96, n_out: 64, n_sam: 48, n_head_sam: 3, n_layer_sam: 3, n_ff_sam: 80,
        n_neck: 16, n_net: 24, side: 16, window: 5, patch: 4, tile_size: 48, min_tiles: 2, max_tiles: 4
    }
}
