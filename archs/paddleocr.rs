//! PaddleOCR-VL language model: identical to Qwen2-VL.

arch_macros::arch! {
    name: "paddleocr";
    like: "qwen2vl";

    hparams {
        eps: f32 = "attention.layer_norm_rms_epsilon";
    }
}
