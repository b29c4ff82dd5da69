//! Ling 3: the encoder of Qwen3-VL without DeepStack. Patches are normalized before the patches of a block are
//! concatenated and projected.

arch_macros::encoder! {
    name: "ling3vl";
    like: "qwen3vl_merger";

    hparams {
        without deep;
    }

    text { "<|vision_start|>", image, "<|vision_end|>\n" }

    tensors {
        without post_ln, deep_norm, deep_fc1, deep_fc2;
        input_norm: norm   "mm.input_norm" [n_embd];
        fc1:        linear "mm.0"          [joined -> n_out];
        fc2:        linear "mm.2"          [n_out -> n_out];
    }

    graph {
        let x = embedded_frames() + resized(position_embd);
        for layer {
            x += attend(layer_norm(x, ln1));
            x += ffn(layer_norm(x, ln2));
        }
        merged(layer_norm(x, input_norm))
    }
}
