//! EuroBERT: the graph of Qwen2 as an encoder with bidirectional attention.

arch_macros::arch! {
    name: "eurobert";
    like: "qwen2";
    attention: bidirectional;
    result: embeddings;
}
