//! InternLM2, dense: the graph of Qwen2 with adjacent-pair rotary positions and an untied output projection.

arch_macros::arch! {
    name: "internlm2";
    like: "qwen2";
    rope: norm;

    tensors {
        output: linear "output" [n_embd -> n_vocab];
    }
}
