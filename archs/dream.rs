//! Dream, a diffusion model: the graph of Qwen2 without the output's bias, every token seeing all of its sequence.

arch_macros::arch! {
    name: "dream";
    like: "qwen2";
    attention: bidirectional;

    tensors {
        ignore "output.bias"; // may be in a file; the model does not add it
    }
}
