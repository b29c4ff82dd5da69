//! Qwen3.5 with experts: Qwen3-Next with interleaved multi-axis rotary positions, and value heads assigned to
//! key heads round-robin.

arch_macros::arch! {
    name: "qwen35moe";
    like: "qwen3next";
    rope: imrope;

    hparams {
        let by_key = false;
    }

    fn embeddings() { with_media(token_embd[tokens]) }
}
