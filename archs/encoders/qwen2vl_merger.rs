//! Qwen2-VL: a vision transformer over images of any size. Queries and keys are rotated by rows and columns.

arch_macros::encoder! {
    name: "qwen2vl_merger";
    of: image;

    image {
        size: multiple(patch_size * merge, rows = 8..4096);
        resize: bicubic;
        patches: patch_size in blocks(merge);
        positions: axes;
    }

    text { "<|vision_start|>", image, "<|vision_end|>" }

    tensors {
        use vit_frames;
        post_ln: norm "v.post_ln" [n_embd];

        layer {
            use vit_block(activation = gelu_quick, width = 4 * n_embd);
        }
    }

    fn placed(x: [head_dim, n_head, T]) { rope_grid(x, 10000.0) }

    graph {
        let x = embedded_frames();
        for layer {
            x += attend(layer_norm(x, ln1));
            x += ffn(layer_norm(x, ln2));
        }
        merged(layer_norm(x, post_ln))
    }

    test { n_embd: 64, n_head: 4, n_layer: 3, n_ff: 96, patch_size: 8, merge: 2, n_out: 64 }
}
