//! Projection, norm, and gated network after the patches of a block are concatenated.

fragment! {
    hparams {
        n_mid: usize = "projector.hidden_length" or file_rows("mm.up.weight");
    }

    tensors {
        mm_fc:   linear "mm.model.fc"  [n_out -> n_out];
        mm_norm: norm   "mm.post_norm" [n_out];
        mm_gate: linear "mm.gate"      [n_out -> n_mid];
        mm_up:   linear "mm.up"        [n_out -> n_mid];
        mm_down: linear "mm.down"      [n_mid -> n_out];
    }

    fn rows_mlp(x: [n_out, _]) {
        let h = gelu_erf(layer_norm(mm_fc(x), mm_norm, 0.00001));
        mm_down(silu(mm_gate(h)) * mm_up(h))
    }
}
