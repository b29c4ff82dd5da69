//! StarCoder and SantaCoder: GPT-2 with a single key and value head for all queries.

arch_macros::arch! {
    name: "starcoder";
    like: "gpt2";
}
