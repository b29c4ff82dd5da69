//! PaddleOCR-VL language model: identical to Qwen2-VL.

arch_macros::arch! {
    name: "paddleocr";
    like: "qwen2vl";

    hparams {
        without rms_norm_eps; // the key is required, unlike in Qwen2-VL
    }
}
