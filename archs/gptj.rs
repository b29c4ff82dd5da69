//! GPT-J: parallel attention and feed-forward network after one layer norm, rotary positions on the first
//! dimensions of each head, and an output projection with a bias.

arch_macros::arch! {
    name: "gptj";
    like: "phi2";
    rope: norm;

    test { n_embd: 128, n_head: 4, n_head_kv: 4, n_rot: 16, n_layer: 2, n_ff: 192, n_vocab: 128 }
}
