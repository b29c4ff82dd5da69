//! Qwen3-VL and Qwen3.5: a vision transformer over images of any size. Learned positions are resized to the image, and
//! queries and keys are rotated by rows and columns. The features of some layers are added in the language model
//! (DeepStack, arXiv 2406.04334).

arch_macros::encoder! {
    name: "qwen3vl_merger";
    of: image;

    hparams {
        image_size: usize = "image_size";
        let side = image_size / patch_size;
    }

    image {
        size: multiple(patch_size * merge, rows = 8..4096);
        resize: bicubic;
        patches: patch_size in blocks(merge);
        positions: axes;
    }

    text { "<|vision_start|>", image, "<|vision_end|>" }

    tensors {
        use vit_frames;
        position_embd: vector "v.position_embd" [n_embd, side * side];
        post_ln:       norm   "v.post_ln"       [n_embd];

        layer {
            use vit_block;
            use deepstack;
        }
    }

    fn placed(x: [head_dim, n_head, T]) { rope_grid(x, 10000.0) }

    graph {
        let x = embedded_frames() + resized(position_embd);
        for layer {
            x += attend(layer_norm(x, ln1));
            x += ffn(layer_norm(x, ln2));
            if deep {
                x = beside(x, deep_features(x));
            }
        }
        merged(layer_norm(x, post_ln))
    }

    test { n_embd: 64, n_head: 4, n_layer: 3, n_ff: 96, image_size: 40, patch_size: 8, merge: 2, n_out: 64 }
}
