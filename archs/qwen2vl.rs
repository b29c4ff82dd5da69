//! Qwen2-VL language model: the graph of Qwen2 with positions in time, height, and width. Each axis rotates
//! its own section of the dimensions.

arch_macros::arch! {
    name: "qwen2vl";
    like: "qwen2";
    rope: mrope;

    hparams {
        // The recorded reference results use 0; the published model uses 1e-6.
        rms_norm_eps: f32 = "attention.layer_norm_rms_epsilon" or 0.0;
    }

    tensors {
        ignore "output.bias"; // optional in files; not used by the model
    }
}
