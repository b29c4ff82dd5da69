//! The first states of a token for `alternating_updates`, and what becomes of the last: all but one are projections of that one, of
//! its length.

fragment! {
    tensors {
        altup_proj: experts                     [n_embd -> n_embd; n_state - 1];
        altup_out:  experts "altup_unembd_proj" [n_embd -> n_embd; n_state - 1];
    }

    fn states_of(x) {
        let first = heads(x, 1);
        let others = rust!([n_embd, n_state - 1, T] => b.each_matrix(m.w.altup_proj, first));
        heads(concat(x, merge(as_long(others, first))), n_state)
    }

    fn mean_of(states) {
        let x = merge(states)[..n_embd];
        let columns = heads(merge(states)[n_embd..], n_state - 1);
        let others = rust!([n_embd, n_state - 1, T] => b.each_matrix(m.w.altup_out, columns));
        let others = merge(as_long(others, heads(x, 1)));
        for i in 0..n_state - 1 {
            x += others[i * n_embd..(i + 1) * n_embd];
        }
        x / n_state
    }

    fn as_long(x, model) {
        x * sqrt(sum_rows(sqr(model))) / sqrt(sum_rows(sqr(x)))
    }
}
