//! Granite Vision 4: SigLIP over square images of one size. Several projectors, each reading the states of one layer,
//! attend to windows of patches with learned queries. Their outputs are features for layers of the language model. The
//! whole image is followed by the tiles of a grid from the file's list.

arch_macros::encoder! {
    name: "granite4_vision";
    of: image;

    image {
        size: fixed(image_size);
        resize: bicubic;
        patches: patch_size in blocks(factor) of blocks(query_side);
    }

    tiles {
        grid: listed(image_size, "image_grid_pinpoints", newline = "v.image_newline", widths_first);
        overview: first "";
    }

    text { image, "\n" }

    tensors {
        use vit_patches(side = image_size / patch_size), window_projectors;
        layer {
            use vit_block;
        }
        layer proj "v.proj_blk" n_proj {
            use window_qformer;
        }
    }

    graph {
        let x = embedded_patches();
        for layer {
            x += attend(layer_norm(x, ln1));
            x = keep(x + ffn(layer_norm(x, ln2)));
        }
        let base = pool_rows(x, factor * factor);
        for proj {
            base = with_windows(base, kept(x, feature_layers, il));
        }
        base_linear(base)
    }

    test {
        n_embd: 128, n_head: 4, n_layer: 3, n_ff: 96, image_size: 48, patch_size: 4, n_out: 64, query_side: 2, window_side: 4,
        feature_layers: 5, spatial_offsets: 5, n_ff_proj: 80
    }
}
