//! A feed-forward network with a misspelled tensor.

fragment! {
    tensors {
        up:   linear "ffn_up"   [n_embd -> n_ff];
        down: linear "ffn_down" [n_ff -> n_embd];
    }

    fn ffn(x) {
        dwon(silu(up(x)))
    }
}
