//! EuroBERT: the plain decoder as an encoder, with bidirectional attention.

arch_macros::arch! {
    name: "eurobert";
    like: "decoder";
    rope: neox;
    attention: bidirectional;
    result: embeddings;
}
