//! InternLM2, dense: the graph of Qwen2 with rotations of neighbours and an output matrix of its own.

arch_macros::arch! {
    name: "internlm2";
    like: "qwen2";
    rope: norm;

    tensors {
        output: linear "output" [n_embd -> n_vocab];
    }
}
