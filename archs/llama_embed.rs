//! Llama-Embed-Nemotron: the graph of Llama as an encoder, every token seeing all of its sequence.

arch_macros::arch! {
    name: "llama-embed";
    like: "llama";
    attention: bidirectional;
    result: embeddings;
}
