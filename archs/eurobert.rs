//! EuroBERT: the graph of Qwen2 as an encoder, every token seeing all of its sequence.

arch_macros::arch! {
    name: "eurobert";
    like: "qwen2";
    attention: bidirectional;
    result: embeddings;
}
