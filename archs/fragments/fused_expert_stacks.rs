//! Weights of gated experts with separate or fused gate and up projections: `routed(x, gate_up =
//! gate_up_exps)`.

fragment! {
    options(width = n_ff_exp);

    tensors {
        use expert_stacks(width = width);
        override gate_exps?, up_exps?: experts "ffn_gate_exps", "ffn_up_exps" [n_embd -> width; n_expert];
        gate_up_exps?: experts "ffn_gate_up_exps" [n_embd -> 2 * width; n_expert];
    }

    checkpoint {
        without gate_up_exps "the converter splits fused projections";
    }
}
