//! openPangu Embedded: grouped-query attention with biases on all four projections, and SwiGLU.

arch_macros::arch! {
    name: "pangu-embedded";
    like: "qwen2";

    tensors {
        ignore "rope_freqs", "rope_factors_short", "rope_factors_long"; // the graph uses no frequency factors
    }

    test { n_embd: 256, n_head: 4, n_head_kv: 2, n_layer: 2, n_ff: 384, n_vocab: 128 }
}
