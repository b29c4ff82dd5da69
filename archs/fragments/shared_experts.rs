//! Shared experts for all tokens, computed as one gated network.

fragment! {
    options(width = n_ff);

    tensors {
        gate_shexp: linear "ffn_gate_shexp" [n_embd -> width];
        up_shexp:   linear "ffn_up_shexp"   [n_embd -> width];
        down_shexp: linear "ffn_down_shexp" [width -> n_embd];
    }

    checkpoint {
        gate_shexp <- ".mlp.shared_experts.gate_proj" or ".mlp.shared_expert.gate_proj";
        up_shexp <- ".mlp.shared_experts.up_proj" or ".mlp.shared_expert.up_proj";
        down_shexp <- ".mlp.shared_experts.down_proj" or ".mlp.shared_expert.down_proj";
    }

    fn shared_experts(x: [n_embd, T], act = silu) {
        down_shexp(act(gate_shexp(x)) * up_shexp(x))
    }
}
