//! Seed-OSS: query, key, and value projections with biases, grouped-query attention, and SwiGLU. Files store
//! the feed-forward norm as `post_attention_norm`.

arch_macros::arch! {
    name: "seed_oss";
    like: "decoder";
    rope: neox;

    tensors {
        layer {
            ffn_norm: vector "post_attention_norm" [n_embd];
        }
    }

    checkpoint "SeedOssForCausalLM" {}
}
