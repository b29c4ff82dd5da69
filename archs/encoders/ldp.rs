//! MobileVLM: the encoder of LLaVA 1.5. Two blocks with depthwise convolutions downsample the projected patches by two
//! along both axes (LDP).

arch_macros::encoder! {
    name: "ldp";
    of: image;

    image {
        size: padded(image_size);
        resize: bicubic;
        patches: patch_size;
        class: first;
    }

    text { image }

    tensors {
        use vit_class, inverted_residuals;
        pre_ln: norm   "v.pre_ln"       [n_embd];
        fc1:    linear "mm.model.mlp.1" [n_embd -> n_out];
        fc2:    linear "mm.model.mlp.3" [n_out -> n_out];
        ignore "v.post_ln";

        layer {
            use vit_block(activation = gelu_quick);
        }
    }

    graph {
        let x = layer_norm(embedded_patches(), pre_ln);
        for layer {
            x += attend(layer_norm(x, ln1));
            x += ffn(layer_norm(x, ln2));
        }
        let x = fc2(gelu_erf(fc1(without_class(x))));
        let x = x + inverted(depthwise_grid(x, taps1, 1));
        second_inverted(depthwise_grid(x, taps2, 2))
    }

    test { n_embd: 64, n_head: 4, n_layer: 3, n_ff: 96, image_size: 56, patch_size: 8, n_out: 64, n_squeezed: 16 }
}
