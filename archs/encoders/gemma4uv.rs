//! Gemma 4 12B: no transformer. Large patches are normalized, projected, and normalized again. Learned embeddings of
//! columns and rows are added, and the sum is normalized and projected.

arch_macros::encoder! {
    name: "gemma4uv";
    of: image;

    hparams {
        n_out: usize = "projection_dim";
        patch_size: usize = "patch_size";
        merge: usize = "projector.scale_factor" or 3;
        n_pos: usize = "context_length" or file_rows("v.position_embd.weight");
        let side = patch_size * merge;
    }

    image {
        size: within(side, rows = 280);
        resize: bicubic;
        patches: side;
    }

    text { "<|image>", image, "<image|>" }

    tensors {
        norm1:         norm   "v.patch_norm.1"         [3 * side * side];
        patch_embd:    linear "v.patch_embd"           [3 * side * side -> n_embd];
        norm2:         norm   "v.patch_norm.2"         [n_embd];
        position_embd: raw    "v.position_embd.weight" [n_embd, n_pos, 2];
        norm3:         norm   "v.patch_norm.3"         [n_embd];
        proj:          linear "mm.input_projection"    [n_embd -> n_out];
    }

    graph {
        let x = layer_norm(patch_embd(layer_norm(patches, norm1, 0.00001)), norm2, 0.00001);
        let x = x + at_columns(part(position_embd, 0)) + at_rows(part(position_embd, 1));
        proj(rms_norm(layer_norm(x, norm3, 0.00001), layer_norm_eps))
    }

    test { n_embd: 64, n_head: 4, n_layer: 0, n_ff: 96, patch_size: 8, merge: 3, n_out: 64, n_pos: 160 }
}
