//! Ling 3: the vision transformer of Qwen3-VL without DeepStack. Patches are normalized. The patches of a block are
//! concatenated and projected.

arch_macros::encoder! {
    name: "ling3vl";
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

    text { "<|vision_start|>", image, "<|vision_end|>\n" }

    tensors {
        use frame_patches;
        position_embd: vector "v.position_embd" [n_embd, side * side];
        input_norm:    norm   "mm.input_norm"   [n_embd];
        fc1:           linear "mm.0"            [n_embd * merge * merge -> n_out];
        fc2:           linear "mm.2"            [n_out -> n_out];
        layer {
            use vit_block;
        }
    }

    fn placed(x: [head_dim, n_head, T]) { rope_grid(x, 10000.0) }

    graph {
        let x = embedded_frames() + resized(position_embd);
        for layer {
            x += attend(layer_norm(x, ln1));
            x += ffn(layer_norm(x, ln2));
        }
        fc2(gelu_erf(fc1(merge(group_rows(layer_norm(x, input_norm), merge * merge)))))
    }

    test { n_embd: 64, n_head: 4, n_layer: 3, n_ff: 96, image_size: 40, patch_size: 8, merge: 2, n_out: 64 }
}
