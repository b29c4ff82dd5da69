//! openPangu Embedded: grouped-query attention with biases on all four projections, and SwiGLU.

arch_macros::arch! {
    name: "pangu-embedded";
    like: "decoder";
    rope: neox;

    tensors {
        ignore "rope_freqs", "rope_factors_short", "rope_factors_long"; // the graph uses no frequency factors
    }
}
