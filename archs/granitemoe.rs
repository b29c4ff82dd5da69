//! Granite 3 and 4 with experts and an optional shared expert: multipliers for embeddings, attention,
//! residual branches, and logits.

arch_macros::arch! {
    name: "granitemoe";
    like: "granite";

    hparams {
        let use_rope = true;
    }

    test { n_embd: 256, n_head: 2, n_layer: 2, n_ff: 384, n_vocab: 128 }
}
