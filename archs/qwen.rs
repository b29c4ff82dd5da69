//! Qwen 1: a fused query, key, and value projection with bias, and multi-head attention. The file's
//! feed-forward length counts the gate and up projections together.

arch_macros::arch! {
    name: "qwen";
    like: "decoder";
    rope: neox;

    tensors {
        output: linear [n_embd -> n_vocab];

        layer {
            use gated_ffn(width = n_ff / 2);
        }
    }
}
