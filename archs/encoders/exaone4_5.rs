//! EXAONE 4.5: the encoder of Qwen2.5-VL, with fewer heads of keys and values, and without positions
//! along axes.

arch_macros::encoder! {
    name: "exaone4_5";
    like: "qwen2.5vl_merger";

    hparams {
        min_pixels: usize = "image_min_pixels" or 3136;
        max_pixels: usize = "image_max_pixels" or 12845056;
        interval: usize = "n_wa_pattern" or 1;
        let unit = patch_size * merge;
        let is_windowed = (il + 1) % max(interval, 1) != 0;
    }

    image {
        size: multiple(unit, rows = min_pixels / (unit * unit)..max_pixels / (unit * unit));
        resize: bicubic;
        patches: patch_size in blocks(merge) of windows(side);
    }

    text { "<vision>", image, "</vision>" }

    tensors {
        layer {
            use vit_attention(shared = n_head_kv);
        }
    }

    fn placed(x: [head_dim, _, T]) { rope_grid(x, 10000.0) }

    test {
        n_embd: 64, n_head: 4, n_head_kv: 2, n_layer: 3, n_ff: 96, patch_size: 8, merge: 2, n_out: 64, window_size: 48, interval: 2,
        min_pixels: 2048, max_pixels: 20480
    }
}
