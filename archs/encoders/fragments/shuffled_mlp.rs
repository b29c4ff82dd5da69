//! Three projections after the patches of a block are concatenated (pixel shuffle).

fragment! {
    needs(merge: usize);

    hparams {
        n_mid: usize = "projector.hidden_length" or file_rows("mm.model.mlp.1.weight");
    }

    tensors {
        fc1: linear "mm.model.mlp.1" [n_embd * merge * merge -> n_mid];
        fc2: linear "mm.model.mlp.2" [n_mid -> n_mid];
        fc3: linear "mm.model.fc"    [n_mid -> n_out];
    }

    fn shuffled_mlp(x: [n_embd, _]) {
        fc3(gelu_erf(fc2(gelu_erf(fc1(merge(group_rows(x, merge * merge)))))))
    }
}
