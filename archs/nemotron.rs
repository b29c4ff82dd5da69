//! Nemotron 3 and 4 (Minitron): layer norms with biases, partial rotary positions, and a feed-forward network
//! of squared ReLUs without a gate.

arch_macros::arch! {
    name: "nemotron";
    like: "jais2";

    tensors {
        output: linear [n_embd -> n_vocab];
    }
}
