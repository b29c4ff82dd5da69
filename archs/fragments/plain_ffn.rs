//! Feed-forward network without a gate.

fragment! {
    options(width = n_ff, activation = gelu);

    tensors {
        up:   linear "ffn_up"   [n_embd -> width];
        down: linear "ffn_down" [width -> n_embd];
    }

    checkpoint {
        up <- ".mlp.up_proj";
        down <- ".mlp.down_proj";
    }

    fn ffn(x: [n_embd, T], act = activation) {
        down(act(up(x)))
    }
}
