//! Shared expert for all tokens, scaled by a scalar sigmoid gate.

fragment! {
    options(width = n_ff_shexp);

    tensors {
        router_shexp: linear "ffn_gate_inp_shexp" [n_embd -> 1];
        use shared_experts(width = width);
    }

    checkpoint {
        router_shexp <- ".mlp.shared_expert_gate";
    }

    fn gated_shared_expert(x: [n_embd, T]) {
        shared_experts(x) * sigmoid(router_shexp(x))
    }
}
