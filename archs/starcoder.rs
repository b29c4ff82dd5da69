//! StarCoder and SantaCoder: GPT-2 with multi-query attention.

arch_macros::arch! {
    name: "starcoder";
    like: "gpt2";
}
