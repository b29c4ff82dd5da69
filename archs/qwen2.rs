//! Qwen2 and Qwen2.5, dense: query, key, and value projections with biases, grouped-query attention, and
//! SwiGLU.

arch_macros::arch! {
    name: "qwen2";
    like: "decoder";
    rope: neox;
}
