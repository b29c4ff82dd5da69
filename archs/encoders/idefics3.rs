//! SmolVLM, Idefics 3: SigLIP over square images of one size. The patches of a block are concatenated (pixel shuffle)
//! and projected. An image is split into squares, followed by the whole image.

arch_macros::encoder! {
    name: "idefics3";
    like: "gemma3";

    hparams {
        merge: usize = "projector.scale_factor" or 2;
        longest_side: usize = "preproc_image_size" or image_size;
    }

    image {
        size: fixed(image_size);
        resize: lanczos;
        patches: patch_size in blocks(merge);
    }

    tiles {
        grid: longest(image_size, longest_side);
        tile: "<fake_token_around_image><row_{row}_col_{column}>";
        between_rows: "\n";
        overview: last "\n\n<fake_token_around_image><global-img>";
        whole: "<fake_token_around_image><global-img>";
    }

    text { image, "<fake_token_around_image>" }

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
