//! XVERSE: the graph of Llama under its own name, with a separate output matrix.

name: "xverse";
like: "llama";

tensors {
    output: linear "output" [n_embd -> n_vocab];
}
