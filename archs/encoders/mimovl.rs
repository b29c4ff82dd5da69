//! MiMo-V2.5: the vision transformer of Qwen2.5-VL with grouped-query attention. In most layers, patches attend to
//! nearby patches, with blocks ordered by lines or by columns.

arch_macros::encoder! {
    name: "mimovl";
    of: image;

    hparams {
        min_pixels: usize = "image_min_pixels";
        max_pixels: usize = "image_max_pixels";
        let unit = patch_size * merge;
    }

    image {
        size: multiple(unit, rows = min_pixels / (unit * unit)..max_pixels / (unit * unit));
        resize: bicubic;
        patches: patch_size in blocks(merge);
    }

    text { "<|vision_start|>", image, "<|vision_end|>" }

    tensors {
        use vit_frames;
        post_ln: norm "v.post_ln" [n_embd];
        layer {
            ln1, ln2: vector [n_embd];
            use near_attention, gated_ffn;
        }
    }

    graph {
        let x = embedded_frames();
        for layer {
            x += attend(rms_norm(x, ln1, layer_norm_eps));
            x += ffn(rms_norm(x, ln2, layer_norm_eps));
        }
        merged(layer_norm(x, post_ln, 0.000001))
    }

    test {
        n_embd: 64, n_head: 4, n_head_kv: 2, n_layer: 5, n_ff: 96, patch_size: 8, merge: 2, n_out: 64, d_head: 24, n_near: 20,
        min_pixels: 2048, max_pixels: 20480
    }
}
