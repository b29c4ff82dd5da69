//! CodeShell: GPT-2 with rotary positions and grouped-query attention.

arch_macros::arch! {
    name: "codeshell";
    like: "starcoder2";

    tensors {
        token_embd: embed [n_embd, n_vocab] or "output";
        output: linear [n_embd -> n_vocab];
    }
}
