//! Qwen3.5, dense: Qwen3.5 with a gated feed-forward network in place of the experts.

arch_macros::arch! {
    name: "qwen35";
    like: "qwen35moe";

    tensors {
        ignore "cls.output";
    }

    checkpoint "Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration" like "Qwen3_5MoeForCausalLM" {}

    test {
        n_embd: 256, n_head: 2, n_layer: 2, n_ff: 384, n_vocab: 128, interval: 2, d_conv: 4, d_inner: 256, d_state: 128,
        n_value: 2, n_key: 2
    }
}
