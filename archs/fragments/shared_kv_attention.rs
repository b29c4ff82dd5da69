//! Attention in windows or whole contexts, with RMS norms on query, key and value heads, where only the first layers have keys and
//! values: the others attend over those of the last one before them with the same kind of window. `rotated(x)` is the declaration's.

fragment! {
    options(d_k = head_dim, d_v = head_dim_v);

    hparams {
        n_sharing: usize = "attention.shared_kv_layers" or 0;
        let n_own = n_layer - n_sharing;
        let own_kv = il < n_own;
        let source = n_own - (if is_swa { 2 } else { 1 });
    }

    tensors {
        use sliding_window(base = 10000.0);
        wq:     linear "attn_q"      [n_embd -> n_head * d_k];
        q_norm: vector "attn_q_norm" [d_k];
        if own_kv {
            wk:     linear "attn_k"      [n_embd -> n_head_kv * d_k];
            wv:     linear "attn_v"      [n_embd -> n_head_kv * d_v];
            k_norm: vector "attn_k_norm" [d_k];
        } else {
            ignore "attn_k", "attn_v", "attn_k_norm";
        }
        wo: linear "attn_output" [n_head * d_v -> n_embd];
    }

    fn attend(x) {
        let q = rotated(rms_norm(heads(query(x), n_head), q_norm, eps));
        let y = if own_kv {
            let key = wk(x);
            let k = rotated(rms_norm(heads(key, n_head_kv), k_norm, eps));
            let v = rms_norm(heads(value(x, key), n_head_kv), eps);
            attention(q, k, v, scale = 1.0, window = standard(n_swa, is_swa))
        } else {
            attention_over(q, source, d_v, scale = 1.0, window = standard(n_swa, is_swa))
        };
        wo(y)
    }

    fn query(x) {
        wq(x)
    }

    fn value(x, key) {
        wv(x)
    }
}
