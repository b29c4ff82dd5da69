//! Windowed or full attention with RMS norms per query, key, and value head, where only the first layers
//! compute keys and values. Each later layer attends to the keys and values of the last such layer with the
//! same kind of window. The declaration provides `rotate(x)`.

fragment! {
    options(head_dim_k = head_dim, head_dim_v = head_dim_v);
    needs(rotate(x));

    hparams {
        n_sharing: usize = "attention.shared_kv_layers" or 0;
        let n_own = n_layer - n_sharing;
        let own_kv = il < n_own;
        let source = n_own - (if is_swa { 2 } else { 1 });
    }

    tensors {
        use sliding_window(base = 10000.0);
        wq:     linear "attn_q"      [n_embd -> n_head * head_dim_k];
        q_norm: vector "attn_q_norm" [head_dim_k];
        if own_kv {
            wk:     linear "attn_k"      [n_embd -> n_head_kv * head_dim_k];
            wv:     linear "attn_v"      [n_embd -> n_head_kv * head_dim_v];
            k_norm: vector "attn_k_norm" [head_dim_k];
        } else {
            ignore "attn_k", "attn_v", "attn_k_norm";
        }
        wo: linear "attn_output" [n_head * head_dim_v -> n_embd];
    }

    fn attend(x: [n_embd, T], ..) {
        let q = rotate(rms_norm(heads(query(x), n_head), q_norm));
        let y = if own_kv {
            let key = wk(x);
            let k = rotate(rms_norm(heads(key, n_head_kv), k_norm));
            let v = rms_norm(heads(value(x, key), n_head_kv));
            attention(q, k, v, scale = 1.0, window = sliding(n_swa, is_swa), ..)
        } else {
            attention_over(q, source, head_dim_v, scale = 1.0, window = sliding(n_swa, is_swa), ..)
        };
        wo(y)
    }

    fn query(x: [n_embd, T]) {
        wq(x)
    }

    fn value(x: [n_embd, T], key: [n_head_kv * head_dim_k, T]) {
        wv(x)
    }
}
