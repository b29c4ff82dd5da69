//! Gated feed-forward network: SwiGLU, or a gate with another activation.

fragment! {
    options(width = n_ff);

    tensors {
        gate: linear "ffn_gate" [n_embd -> width];
        up:   linear "ffn_up"   [n_embd -> width];
        down: linear "ffn_down" [width -> n_embd];
    }

    checkpoint {
        gate <- ".mlp.gate_proj";
        up <- ".mlp.up_proj";
        down <- ".mlp.down_proj";
    }

    fn ffn(x: [n_embd, T], act = silu) {
        down(act(gate(x)) * up(x))
    }
}
