//! Alternating updates (AltUp, arXiv 2301.13310) around the layers. All states of a token except the first
//! are projections of the first, scaled to its magnitude. After the last layer, the states are projected back
//! and averaged. Use together with `altup`.

fragment! {
    needs(n_state: usize);

    tensors {
        altup_proj: per_head [n_embd -> n_embd; n_state - 1];
        altup_unproj: per_head "altup_unembd_proj" [n_embd -> n_embd; n_state - 1];
    }

    fn altup_states(x: [n_embd, T]) {
        let first = heads(x, 1);
        let others = heads(merge(altup_proj(repeat_heads(first, n_state - 1))), n_state - 1);
        heads(concat(x, merge(with_length_of(others, first))), n_state)
    }

    fn altup_mean(states: [n_embd, n_state, T]) {
        let x = merge(states)[..n_embd];
        let columns = heads(merge(states)[n_embd..], n_state - 1);
        let others = heads(merge(altup_unproj(columns)), n_state - 1);
        let others = merge(with_length_of(others, heads(x, 1)));
        for i in 0..n_state - 1 {
            x += others[i * n_embd..(i + 1) * n_embd];
        }
        x / n_state
    }

    fn with_length_of(x: [n_embd, _, T], model: [n_embd, 1, T]) {
        x * sqrt(sum_rows(sqr(model))) / sqrt(sum_rows(sqr(x)))
    }
}
