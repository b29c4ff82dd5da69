//! Nemotron 3 and 4 (Minitron): biased LayerNorms, rotation of a part of each head, a feed-forward network of
//! squared ReLUs without a gate.

arch_macros::arch! {
    name: "nemotron";
    like: "jais2";

    tensors {
        output: linear [n_embd -> n_vocab];
    }
}
