//! LLaDA, a diffusion model: the graph of Qwen2 with rotations of neighbours, every token seeing all of its sequence.

arch_macros::arch! {
    name: "llada";
    like: "qwen2";
    rope: norm;
    attention: bidirectional;

    tensors {
        // What may be in a file although the model does not use it.
        ignore "rope_freqs", "attn_output.bias", "ffn_gate.bias", "ffn_up.bias", "ffn_down.bias";
    }
}
