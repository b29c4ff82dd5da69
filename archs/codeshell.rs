//! CodeShell: as GPT-2, with rotary positions and grouped-query attention.

arch_macros::arch! {
    name: "codeshell";
    like: "starcoder2";

    tensors {
        output: linear [n_embd -> n_vocab];
    }
}
