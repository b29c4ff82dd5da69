//! Patches of a block, concatenated and projected to the width of the encoder. Files without this projection have
//! blocks of one patch.

fragment! {
    needs(merge: usize);

    tensors {
        input_norm?: vector "mm.input_norm" [n_embd];
        if has(input_norm) {
            merger: linear "mm.patch_merger" [n_embd * merge * merge -> n_embd];
        }
    }

    fn joined(x: [n_embd, T]) {
        if has(input_norm) {
            let h = group_rows(rms_norm(x, input_norm, layer_norm_eps), merge * merge);
            merger(interleave(merge(h), merge * merge))
        } else {
            sum_heads(group_rows(x, merge * merge))
        }
    }
}
