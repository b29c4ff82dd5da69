//! InternLM2, dense: grouped-query attention, SwiGLU, and an untied output projection.

arch_macros::arch! {
    name: "internlm2";
    like: "decoder";
    rope: norm;

    tensors {
        output: linear [n_embd -> n_vocab];
    }
}
