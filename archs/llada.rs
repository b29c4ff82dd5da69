//! LLaDA: a diffusion model with the graph of Llama and bidirectional attention.

arch_macros::arch! {
    name: "llada";
    like: "decoder";
    rope: norm;
    attention: bidirectional;

    tensors {
        // Optional in files; not used by the model.
        ignore "rope_freqs", "attn_output.bias", "ffn_gate.bias", "ffn_up.bias", "ffn_down.bias";
    }
}
