//! Granite 3 and 4 with experts and an optional shared expert: multipliers for embeddings, attention,
//! residual branches, and logits.

arch_macros::arch! {
    name: "granitemoe";
    like: "granite";

    hparams {
        let use_rope = true;
    }

    checkpoint "GraniteMoeForCausalLM" like "GraniteForCausalLM" {
        without gate, up, down "all layers have experts";
        without gate_shexp, up_shexp, down_shexp "the class has no shared expert";
        router <- ".block_sparse_moe.router.layer" or ".mlp.gate";
        gate_exps <- ".block_sparse_moe.input_linear" split 0 / 2 or ".mlp.experts.gate_up_proj" split 0 / 2;
        up_exps <- ".block_sparse_moe.input_linear" split 1 / 2 or ".mlp.experts.gate_up_proj" split 1 / 2;
        down_exps <- ".block_sparse_moe.output_linear" or ".mlp.experts.down_proj";
    }

    test { n_embd: 256, n_head: 2, n_layer: 2, n_ff: 384, n_vocab: 128 }
}
