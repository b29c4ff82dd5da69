//! InternVL 2.5 and 3: a vision transformer with a class token over square images of one size. The patches of a block
//! are concatenated (pixel shuffle) and projected. A large image is split into squares, followed by the whole image.

arch_macros::encoder! {
    name: "internvl";
    of: image;

    hparams {
        merge: usize = "projector.scale_factor" or 2;
        min_tiles: usize = "preproc_min_tiles" or 1;
        max_tiles: usize = "preproc_max_tiles" or 12;
        let joined = n_embd * merge * merge;
    }

    image {
        size: fixed(image_size);
        resize: bicubic;
        patches: patch_size in blocks(merge);
        class: first;
    }

    tiles {
        grid: ratio(image_size, tiles = min_tiles..max_tiles);
        overview: last "";
    }

    text { "<img>", image, "</img>" }

    tensors {
        use vit_class;
        norm: norm   "mm.model.mlp.0" [joined];
        fc1:  linear "mm.model.mlp.1" [joined -> n_out];
        fc2:  linear "mm.model.mlp.3" [n_out -> n_out];

        layer {
            use vit_block(activation = gelu_erf);
            use layer_scale;
        }
    }

    graph {
        let x = embedded_patches();
        for layer {
            x += attend(layer_norm(x, ln1)) * ls1;
            x += ffn(layer_norm(x, ln2)) * ls2;
        }
        fc2(gelu_erf(fc1(layer_norm(merge(group_rows(without_class(x), merge * merge)), norm, 0.00001))))
    }

    test { n_embd: 64, n_head: 4, n_layer: 3, n_ff: 96, image_size: 48, patch_size: 8, merge: 2, n_out: 64 }
}
