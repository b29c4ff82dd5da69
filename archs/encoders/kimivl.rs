//! Kimi-VL: a vision transformer (MoonViT) over images of any size. Learned positions are resized to the image, and
//! queries and keys are rotated by columns and rows. Patches are normalized. The patches of a block are concatenated
//! and projected.

arch_macros::encoder! {
    name: "kimivl";
    of: image;

    hparams {
        merge: usize = "projector.scale_factor" or 2;
    }

    image {
        size: bordered(patch_size * merge, rows = 1024);
        resize: bicubic;
        patches: patch_size in blocks(merge);
    }

    text { "<|media_start|>image<|media_content|>", image, "<|media_end|>" }

    tensors {
        use resized_patches, block_mlp;

        layer {
            use vit_block;
        }
    }

    fn placed(x: [head_dim, n_head, T]) { rope_grid(x, 10000.0, pairs = alternating, columns_first = true) }

    graph {
        let x = patch_embd(patches) + resized(position_embd, bicubic);
        for layer {
            x += attend(layer_norm(x, ln1));
            x += ffn(layer_norm(x, ln2));
        }
        block_mlp(layer_norm(x, post_ln))
    }

    test { n_embd: 64, n_head: 4, n_layer: 3, n_ff: 96, patch_size: 8, merge: 2, n_out: 64, n_pos: 36 }
}
