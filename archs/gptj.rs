//! GPT-J: parallel attention and feed-forward network after one layer norm, and an output projection with a bias.
//! Rotary positions apply to the first dimensions of each head.

arch_macros::arch! {
    name: "gptj";
    like: "phi2";
    rope: norm;

    test { n_embd: 128, n_head: 4, n_head_kv: 4, n_rot: 16, n_layer: 2, n_ff: 192, n_vocab: 128 }
}
