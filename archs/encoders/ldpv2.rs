//! MobileVLM V2: the encoder of LLaVA 1.5. The projected patches of a block are averaged, and a depthwise convolution
//! is added (LDPv2).

arch_macros::encoder! {
    name: "ldpv2";
    of: image;

    image {
        size: padded(image_size);
        resize: bicubic;
        patches: patch_size in blocks(2);
        class: first;
    }

    text { image }

    tensors {
        use vit_class;
        pre_ln: norm   "v.pre_ln"            [n_embd];
        fc1:    linear "mm.model.mlp.0"      [n_embd -> n_out];
        fc2:    linear "mm.model.mlp.2"      [n_out -> n_out];
        taps:   vector "mm.model.peg.0"      [9, n_out];
        shift:  raw    "mm.model.peg.0.bias" [n_out];
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
        let x = pool_rows(fc2(gelu_erf(fc1(without_class(x)))), 4);
        x + depthwise_grid(x, taps, 1) + shift
    }

    test { n_embd: 64, n_head: 4, n_layer: 3, n_ff: 96, image_size: 48, patch_size: 8, n_out: 64 }
}
