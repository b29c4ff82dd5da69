//! GLM 5.3: the encoder of GLM-4.1V with norms of queries and keys, limited activations, and no learned positions. The
//! image is padded with black borders to whole patches.

arch_macros::encoder! {
    name: "glm5v";
    like: "glm4v";

    hparams {
        min_pixels: usize = "image_min_pixels" or 12544;
        max_pixels: usize = "image_max_pixels" or 6272000;
        without image_size, side;
        let unit = patch_size * merge;
    }

    image {
        size: extended(unit, rows = min_pixels / (unit * unit)..max_pixels / (unit * unit));
        resize: bicubic;
        patches: patch_size in blocks(merge);
    }

    tensors {
        without embd_norm, position_embd;
        use limited_gate;
        layer {
            use gated_ffn;
            use head_norms;
        }
    }

    fn ffn(x: [n_embd, T]) { down(limited(gate(x), up(x))) }

    fn rows_mlp(x: [n_out, _]) {
        let h = gelu_erf(layer_norm(mm_fc(x), mm_norm, 0.00001));
        mm_down(limited(mm_gate(h), mm_up(h)))
    }

    graph {
        let x = embedded_frames();
        for layer {
            x += normed_attention(rms_norm(x, ln1, layer_norm_eps));
            x += ffn(rms_norm(x, ln2, layer_norm_eps));
        }
        rows_mlp(merger(interleave(merge(group_rows(rms_norm(x, post_ln, layer_norm_eps), merge * merge)), merge * merge)))
    }

    test {
        n_embd: 64, n_head: 4, n_layer: 3, n_ff: 96, patch_size: 8, merge: 2, n_out: 64, n_mid: 96, min_pixels: 2048, max_pixels: 20480,
        limit: 0.5
    }
}
