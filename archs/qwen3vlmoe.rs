//! Qwen3-VL language model with experts: the graph of Qwen3 MoE with the rotary positions of Qwen3-VL.

arch_macros::arch! {
    name: "qwen3vlmoe";
    like: "qwen3moe";
    rope: imrope;
}
