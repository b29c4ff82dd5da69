//! RND1, a diffusion model made of Qwen3 MoE: the same graph, every token seeing all of its sequence.

arch_macros::arch! {
    name: "rnd1";
    like: "qwen3moe";
    attention: bidirectional;
}
