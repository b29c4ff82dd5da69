//! Seed-OSS: query, key, and value projections with biases, grouped-query attention, and SwiGLU. Files store
//! the feed-forward norm as `post_attention_norm`.

arch_macros::arch! {
    name: "seed_oss";
    like: "qwen2";

    tensors {
        layer {
            ffn_norm: vector "post_attention_norm" [n_embd];
        }
    }

    test { n_embd: 256, n_head: 4, n_head_kv: 2, n_layer: 2, n_ff: 384, n_vocab: 128 }
}
