//! `gated_ffn` with the gate and up projections in one tensor.

fragment! {
    tensors {
        up:   linear "ffn_up"   [n_embd -> 2 * n_ff]; // rows of the gate, then of the up projection
        down: linear "ffn_down" [n_ff -> n_embd];
    }

    checkpoint {
        up <- ".mlp.gate_up_proj";
        down <- ".mlp.down_proj";
    }

    fn ffn(x: [n_embd, T]) {
        let h = up(x);
        down(silu(h[..n_ff]) * h[n_ff..])
    }
}
