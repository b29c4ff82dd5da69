//! Janus-Pro: SigLIP over square images of one size, which resized images are padded to. Patches are projected.

arch_macros::encoder! {
    name: "janus_pro";
    of: image;

    image {
        size: contained(image_size, min = 14);
        resize: bicubic;
        patches: patch_size;
    }

    text { "<begin_of_image>", image, "<end_of_image>" }

    tensors {
        use vit_patches(side = image_size / patch_size);
        post_ln: norm   "v.post_ln" [n_embd];
        fc1:     linear "mm.0"      [n_embd -> n_out];
        fc2:     linear "mm.1"      [n_out -> n_out];
        layer {
            use vit_block(activation = gelu_erf);
        }
    }

    graph {
        let x = embedded_patches();
        for layer {
            x += attend(layer_norm(x, ln1));
            x += ffn(layer_norm(x, ln2));
        }
        fc2(gelu_erf(fc1(layer_norm(x, post_ln))))
    }

    test { n_embd: 64, n_head: 4, n_layer: 3, n_ff: 96, image_size: 48, patch_size: 8, n_out: 64 }
}
