//! LLaDA: a diffusion model with the graph of Qwen2, adjacent-pair rotary positions, and bidirectional
//! attention.

arch_macros::arch! {
    name: "llada";
    like: "qwen2";
    rope: norm;
    attention: bidirectional;

    tensors {
        // Optional in files; not used by the model.
        ignore "rope_freqs", "attn_output.bias", "ffn_gate.bias", "ffn_up.bias", "ffn_down.bias";
    }
}
