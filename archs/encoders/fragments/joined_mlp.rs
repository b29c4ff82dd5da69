//! Norm and two projections after four patches are concatenated.

fragment! {
    tensors {
        input_norm: norm   "mm.input_norm" [n_embd * 4];
        mm_up:      linear "mm.up"         [n_embd * 4 -> n_embd * 4];
        mm_down:    linear "mm.down"       [n_embd * 4 -> n_out];
    }

    fn joined_mlp(x: [n_embd, _]) {
        mm_down(gelu_erf(mm_up(layer_norm(merge(group_rows(x, 4)), input_norm, 0.000001))))
    }
}
