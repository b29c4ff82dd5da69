//! LLaVA 1.5 and 1.6: CLIP over square images of one size, which images are padded to. Files omit the layers after the
//! one whose output is projected. In LLaVA 1.6, the whole image is followed by the tiles of a grid from the file's
//! list.

arch_macros::encoder! {
    name: "mlp";
    of: image;

    image {
        size: padded(image_size);
        resize: bicubic;
        patches: patch_size;
        class: first;
    }

    tiles {
        grid: listed(image_size, "image_grid_pinpoints", newline = "model.image_newline");
        overview: first "";
    }

    text { image }

    tensors {
        use vit_class;
        pre_ln:         norm   "v.pre_ln"            [n_embd];
        fc1:            linear "mm.0"                [n_embd -> n_out];
        fc2:            linear "mm.2"                [n_out -> n_out];
        image_newline?: raw    "model.image_newline" [n_out];
        ignore "v.post_ln", "v.image_newline";

        layer {
            use vit_block(activation = gelu_quick);
        }
    }

    graph {
        let x = embedded_patches();
        let x = layer_norm(x, pre_ln);
        for layer {
            x += attend(layer_norm(x, ln1));
            x += ffn(layer_norm(x, ln2));
        }
        fc2(gelu_erf(fc1(without_class(x))))
    }

    test { n_embd: 64, n_head: 4, n_layer: 3, n_ff: 96, image_size: 48, patch_size: 8, n_out: 64 }
}
