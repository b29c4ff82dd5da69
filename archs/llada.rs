//! LLaDA, a diffusion model: the graph of Qwen2 with rotations of neighbours, every token seeing all of its sequence.

arch_macros::arch! {
    name: "llada";
    like: "qwen2";
    rope: norm;
    attention: bidirectional;

    tensors {
        ignore "rope_freqs"; // may be in a file; the model rotates without factors
    }
}
