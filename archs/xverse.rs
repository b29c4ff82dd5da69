//! XVERSE: the graph of the first Llama, full-precision output matrix of its own; one graph from 7B to 65B.

arch_macros::arch! {
    name: "xverse";
    like: "qwen2";
    rope: norm;

    tensors {
        output: linear [n_embd -> n_vocab];
    }
}
