//! SmolVLM, Idefics 3: SigLIP over squares of one size. The patches of a block are joined (pixel shuffle) and
//! projected. A large image is not split into tiles.

arch_macros::encoder! {
    name: "idefics3";
    like: "gemma3";

    hparams {
        merge: usize = "projector.scale_factor" or 2;
    }

    image {
        size: fixed(image_size);
        resize: lanczos;
        patches: patch_size in blocks(merge);
    }

    text { "<fake_token_around_image><global-img>", image, "<fake_token_around_image>" }

    tensors {
        without soft_emb_norm, proj;
        fc: linear "mm.model.fc" [n_embd * merge * merge -> n_out];
    }

    graph {
        let x = embedded_patches();
        for layer {
            x += attend(layer_norm(x, ln1));
            x += ffn(layer_norm(x, ln2));
        }
        fc(merge(group_rows(layer_norm(x, post_ln), merge * merge)))
    }
}
