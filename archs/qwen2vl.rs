//! Qwen2-VL's language model: the graph of Qwen2 with positions in time, height and width, each turning a section of the
//! rotary pairs.

arch_macros::arch! {
    name: "qwen2vl";
    like: "qwen2";
    rope: mrope;

    hparams {
        // Recorded results are computed without; the published model's is 1e-6.
        eps: f32 = "attention.layer_norm_rms_epsilon" or 0.0;
    }

    tensors {
        ignore "output.bias"; // files may hold one that the model does not add
    }
}
