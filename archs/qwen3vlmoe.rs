//! Qwen3-VL's language model with experts: the graph of Qwen3 MoE, rotated as Qwen3-VL is.

arch_macros::arch! {
    name: "qwen3vlmoe";
    like: "qwen3moe";
    rope: imrope;
}
