//! XVERSE: the graph of Llama under its own name, with an output matrix of its own.

name: "xverse";
like: "llama";

tensors {
    output: linear "output" [n_embd -> n_vocab];
}
