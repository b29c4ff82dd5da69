//! Llama-Embed-Nemotron: the graph of Llama as an encoder with bidirectional attention.

arch_macros::arch! {
    name: "llama-embed";
    like: "llama";
    attention: bidirectional;
    result: embeddings;
}
