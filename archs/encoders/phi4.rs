//! Phi-4 reasoning vision: SigLIP 2 over images of any size, whose learned positions are resized to the image. Patches
//! are projected. Files omit the last layer of SigLIP 2, whose output is not projected.

arch_macros::encoder! {
    name: "phi4";
    of: image;

    hparams {
        n_out: usize = "projection_dim";
        patch_size: usize = "patch_size";
        n_pos: usize = "context_length" or file_rows("v.position_embd.weight");
        min_pixels: usize = "image_min_pixels" or 65536;
        max_pixels: usize = "image_max_pixels" or 921600;
        let area = patch_size * patch_size;
    }

    image {
        size: fitting(patch_size, rows = min_pixels / area..max_pixels / area);
        resize: bilinear;
        patches: patch_size;
    }

    text { image }

    tensors {
        patch_embd:    linear "v.patch_embd"    [3 * patch_size * patch_size -> n_embd];
        position_embd: vector "v.position_embd" [n_embd, n_pos];
        fc1:           linear "mm.0"            [n_embd -> n_out];
        fc2:           linear "mm.2"            [n_out -> n_out];
        layer {
            use vit_block;
        }
    }

    graph {
        let x = patch_embd(patches) + resized(position_embd, smooth);
        for layer {
            x += attend(layer_norm(x, ln1));
            x += ffn(layer_norm(x, ln2));
        }
        fc2(gelu_erf(fc1(x)))
    }

    test { n_embd: 64, n_head: 4, n_layer: 3, n_ff: 96, patch_size: 8, n_out: 64, n_pos: 36, min_pixels: 2048, max_pixels: 20480 }
}
