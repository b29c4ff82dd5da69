//! XVERSE: the graph of Llama 1 with an untied output projection, for the 7B to 65B models.

arch_macros::arch! {
    name: "xverse";
    like: "decoder";
    rope: norm;

    tensors {
        output: linear [n_embd -> n_vocab];
    }
}
