//! Nemotron Nano VL v2 and Nemotron 3 Nano Omni: RADIO over square images of one size. Learned columns precede the
//! patches (class tokens and registers). The patches of a block are concatenated and projected.

arch_macros::encoder! {
    name: "nemotron_v2_vl";
    of: image;

    hparams {
        merge: usize = "projector.scale_factor" or 2;
        n_registers: usize = "n_registers" or file_rows("v.class_embd");
        n_mid: usize = "projector.hidden_length" or file_rows("mm.model.mlp.1.weight");
        let joined = n_embd * merge * merge;
    }

    image {
        size: fixed(image_size);
        resize: bicubic;
        patches: patch_size in blocks(merge);
    }

    text { "<img>", image, "</img>" }

    tensors {
        use vit_patches(side = image_size / patch_size);
        registers: raw    "v.class_embd"   [n_embd, n_registers];
        norm:      vector "mm.model.mlp.0" [joined];
        fc1:       linear "mm.model.mlp.1" [joined -> n_mid];
        fc2:       linear "mm.model.mlp.3" [n_mid -> n_out];
        layer {
            use fused_vit_block;
        }
    }

    graph {
        let x = join_rows(registers, embedded_patches());
        for layer {
            x += attend(layer_norm(x, ln1));
            x += ffn(layer_norm(x, ln2));
        }
        let x = merge(group_rows(drop_rows(x, n_registers), merge * merge));
        fc2(relu_sqr(fc1(rms_norm(x, norm, 0.00001))))
    }

    test { n_embd: 64, n_head: 4, n_layer: 3, n_ff: 96, image_size: 48, patch_size: 8, merge: 2, n_out: 64, n_registers: 10, n_mid: 80 }
}
