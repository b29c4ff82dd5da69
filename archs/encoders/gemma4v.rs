//! Gemma 4: a vision transformer over images of any size, with RMS norms before and after attention and feed-forward
//! networks. Learned embeddings of columns and rows are added, and queries and keys are rotated by both. Blocks of
//! patches are averaged, standardized by constants of the file, normalized, and projected.

arch_macros::encoder! {
    name: "gemma4v";
    of: image;

    hparams {
        n_out: usize = "projection_dim";
        patch_size: usize = "patch_size";
        merge: usize = "projector.scale_factor" or 3;
        n_pos: usize = "context_length" or file_rows("v.position_embd.weight");
    }

    image {
        size: within(patch_size * merge, rows = 280);
        resize: bicubic;
        patches: patch_size in blocks(merge);
    }

    text { "<|image>", image, "<image|>" }

    tensors {
        patch_embd:    linear "v.patch_embd"           [3 * patch_size * patch_size -> n_embd];
        position_embd: raw    "v.position_embd.weight" [n_embd, n_pos, 2];
        use standardized;
        proj: linear "mm.input_projection" [n_embd -> n_out];

        layer {
            use gemma_block;
        }
    }

    graph {
        let x = patch_embd(patches * 2 - 1) + at_columns(part(position_embd, 0)) + at_rows(part(position_embd, 1));
        for layer {
            x += rms_norm(attend(rms_norm(x, ln1, layer_norm_eps)), attn_post_norm, layer_norm_eps);
            x += rms_norm(ffn(rms_norm(x, ln2, layer_norm_eps), act = gelu), ffn_post_norm, layer_norm_eps);
        }
        let x = sum_heads(group_rows(x, merge * merge)) * (sqrt(n_embd) / (merge * merge));
        proj(rms_norm(standardized(x), layer_norm_eps))
    }

    test { n_embd: 64, n_head: 4, n_layer: 3, n_ff: 96, patch_size: 8, merge: 3, n_out: 64, n_pos: 160 }
}
