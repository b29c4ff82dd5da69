//! Dream: a diffusion model with the graph of Qwen2 and bidirectional attention, without the output bias.

arch_macros::arch! {
    name: "dream";
    like: "qwen2";
    attention: bidirectional;

    tensors {
        ignore "output.bias"; // optional in files; not used by the model
    }
}
