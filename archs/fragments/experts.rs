//! Gated experts with a router.

fragment! {
    options(width = n_ff);

    tensors {
        router: linear "ffn_gate_inp" [n_embd -> n_expert];
        use expert_stacks(width = width);
    }

    checkpoint {
        router <- ".mlp.gate";
    }
}
