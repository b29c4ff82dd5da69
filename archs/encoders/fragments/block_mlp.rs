//! Norm of each patch, and two projections after the patches of a block are concatenated.

fragment! {
    needs(merge: usize);

    tensors {
        input_norm: norm   "mm.input_norm" [n_embd];
        fc1:        linear "mm.1"          [n_embd * merge * merge -> n_embd * merge * merge];
        fc2:        linear "mm.2"          [n_embd * merge * merge -> n_out];
    }

    fn block_mlp(x: [n_embd, T]) {
        fc2(gelu_erf(fc1(merge(group_rows(layer_norm(x, input_norm, 0.00001), merge * merge)))))
    }
}
