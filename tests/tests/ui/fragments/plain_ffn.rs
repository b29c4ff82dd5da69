//! A feed-forward network.

fragment! {
    tensors {
        up:   linear "ffn_up"   [n_embd -> n_ff];
        down: linear "ffn_down" [n_ff -> n_embd];
    }

    fn ffn(x) {
        down(silu(up(x)))
    }
}
