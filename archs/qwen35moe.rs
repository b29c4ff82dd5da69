//! Qwen3.5 with experts: Qwen3-Next with rotations by the axes of a position, interleaved, and value heads that take turns at
//! the key heads.

arch_macros::arch! {
    name: "qwen35moe";
    like: "qwen3next";
    rope: imrope;

    hparams {
        let by_key = false;
    }
}
