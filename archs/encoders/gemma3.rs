//! Gemma 3: SigLIP over square images of one size. Blocks of patches are averaged, normalized, and projected.

arch_macros::encoder! {
    name: "gemma3";
    of: image;

    hparams {
        merge: usize = "projector.scale_factor" or 4;
        let side = image_size / patch_size;
    }

    image {
        size: fixed(image_size);
        resize: bilinear;
        patches: patch_size in blocks(merge);
    }

    text { "\n\n<start_of_image>", image, "<end_of_image>\n\n" }

    tensors {
        use vit_patches(side = side);
        post_ln:       norm   "v.post_ln"                  [n_embd];
        soft_emb_norm: vector "mm.soft_emb_norm"           [n_embd];
        proj:          raw    "mm.input_projection.weight" [n_out, n_embd]; // stored transposed

        layer {
            use vit_block;
        }
    }

    graph {
        let x = embedded_patches();
        for layer {
            x += attend(layer_norm(x, ln1));
            x += ffn(layer_norm(x, ln2));
        }
        let x = sum_heads(group_rows(layer_norm(x, post_ln), merge * merge)) / (merge * merge);
        matmul(transposed(proj), rms_norm(x, soft_emb_norm, layer_norm_eps))
    }

    test { n_embd: 64, n_head: 4, n_layer: 3, n_ff: 96, image_size: 112, patch_size: 14, merge: 2, n_out: 64 }
}
