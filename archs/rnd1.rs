//! RND1: a diffusion model converted from Qwen3 MoE, with the same graph and bidirectional attention.

arch_macros::arch! {
    name: "rnd1";
    like: "qwen3moe";
    attention: bidirectional;
}
