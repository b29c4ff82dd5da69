//! Kimi K2.5: the encoder of Kimi-VL with a table of learned positions by row and column. Queries and keys in the file
//! store the values of columns before the values of rows.

arch_macros::encoder! {
    name: "kimik25";
    like: "kimivl";

    hparams {
        image_size: usize = "image_size";
        max_pixels: usize = "image_max_pixels" or 3211264;
        without n_pos;
        let side = image_size / patch_size;
        let unit = patch_size * merge;
    }

    image {
        size: bordered(unit, rows = max_pixels / (unit * unit));
        resize: bicubic;
        patches: patch_size in blocks(merge);
    }

    text { "<|media_begin|>image<|media_content|>", image, "<|media_end|>" }

    tensors {
        position_embd: raw "v.position_embd.weight" [n_embd, side, side];
    }

    fn placed(x: [head_dim, n_head, T]) { rope_grid(x, 10000.0, pairs = neighbors, columns_first = true) }

    test {
        n_embd: 64, n_head: 4, n_layer: 3, n_ff: 96, image_size: 48, patch_size: 8, merge: 2, n_out: 64, max_pixels: 24576
    }
}
