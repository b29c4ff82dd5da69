//! Qwen2.5-VL: Qwen2-VL with RMS norms and gated feed-forward networks. In most layers, patches attend to those of
//! their window.

arch_macros::encoder! {
    name: "qwen2.5vl_merger";
    of: image;

    hparams {
        window_size: usize = "window_size" or 112;
        interval: usize = "n_wa_pattern";
        let side = window_size / patch_size / merge;
        let is_windowed = (il + 1) % interval != 0;
    }

    image {
        size: multiple(patch_size * merge, rows = 8..4096);
        resize: bicubic;
        patches: patch_size in blocks(merge) of windows(side);
        positions: axes;
    }

    text { "<|vision_start|>", image, "<|vision_end|>" }

    tensors {
        use vit_frames;
        post_ln: vector "v.post_ln" [n_embd];

        layer {
            ln1, ln2: vector [n_embd];
            use vit_attention, gated_ffn;
        }
    }

    fn placed(x: [head_dim, n_head, T]) { rope_grid(x, 10000.0) }

    graph {
        let x = embedded_frames();
        for layer {
            x += attend(rms_norm(x, ln1, layer_norm_eps), window = chunked(side * merge * side * merge, is_windowed));
            x += ffn(rms_norm(x, ln2, layer_norm_eps));
        }
        merged(rms_norm(x, post_ln, layer_norm_eps))
    }

    test { n_embd: 64, n_head: 4, n_layer: 3, n_ff: 96, patch_size: 8, merge: 2, n_out: 64, window_size: 48, interval: 2 }
}
