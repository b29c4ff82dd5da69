//! Alternating updates (AltUp, arXiv 2301.13310) within a layer. One of a token's `n_state` states passes
//! through the layer. All states are predicted before the layer and corrected by its result.

fragment! {
    needs(n_state: usize);

    tensors {
        correct_coef:  linear "altup_correct_coef"  [n_state -> n_state];
        correct_scale: vector "altup_correct_scale" [n_embd];
        predict_coef:  linear "altup_predict_coef"  [n_state -> n_state * n_state];
        altup_router:  linear "altup_router"        [n_embd -> n_state];
        router_norm:   vector "altup_router_norm"   [n_embd];
    }

    fn router_modalities(x: [n_embd, T]) {
        tanh(altup_router(rms_norm(x, router_norm) / n_embd))
    }

    fn altup_predict(states: [n_embd, n_state, T]) {
        let coefs = heads(predict_coef(router_modalities(merge(states)[..n_embd])), n_state);
        let y = states;
        for j in 0..n_state {
            let state = merge(states)[j * n_embd..(j + 1) * n_embd];
            y += repeat_heads(heads(state, 1), n_state) * coefs[j..j + 1];
        }
        y
    }

    fn altup_correct(prediction: [n_embd, n_state, T], x: [n_embd, T]) {
        let coefs = heads(correct_coef(router_modalities(x)) + 1.0, n_state);
        prediction + repeat_heads(heads(x - merge(prediction)[..n_embd], 1), n_state) * coefs
    }
}
