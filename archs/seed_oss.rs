//! Seed-OSS: biased query, key and value projections, grouped-query attention, SwiGLU. The norm before the
//! feed-forward network is stored as the one after attention.

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
