//! OpenELM: head counts and feed-forward widths that grow with depth, a fused query, key, and value
//! projection, and norms per query and key head.

arch_macros::arch! {
    name: "openelm";
    like: "qwen3";

    test { n_embd: 256, n_head: 2, n_head_kv: 2, n_layer: 2, n_ff: 384, n_vocab: 128 }
}
