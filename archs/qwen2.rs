//! Qwen2 and Qwen2.5, dense: query, key, and value projections with biases, grouped-query attention, and
//! SwiGLU.

arch_macros::arch! {
    name: "qwen2";
    like: "decoder";
    rope: neox;

    fn embeddings() { with_media(token_embd[tokens]) }

    checkpoint "Qwen2ForCausalLM" {
        check first("use_sliding_window", false) == false, "use_sliding_window must be false: this class has no windows here";
    }
}
