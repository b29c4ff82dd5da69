//! Grouped-query attention with RMS norms on each query and key head before they rotate.

fragment! {
    tensors {
        wq: linear "attn_q"      [n_embd -> n_head * head_dim];
        wk: linear "attn_k"      [n_embd -> n_head_kv * head_dim];
        wv: linear "attn_v"      [n_embd -> n_head_kv * head_dim_v];
        wo: linear "attn_output" [n_head * head_dim_v -> n_embd];
        q_norm, k_norm: vector "attn_q_norm", "attn_k_norm" [head_dim];
    }

    fn attend(x, base?, rope_scale?, factors?, scale?, window?, selection?) {
        let q = rope(rms_norm(heads(wq(x), n_head), q_norm, eps), base = base, scale = rope_scale, factors = factors);
        let k = rope(rms_norm(heads(wk(x), n_head_kv), k_norm, eps), base = base, scale = rope_scale, factors = factors);
        let v = heads(wv(x), n_head_kv);
        wo(attention(q, k, v, scale = scale, window = window, selection = selection))
    }

    fn attend_where(x, rotated, base?, factors?, window?) {
        let q = rms_norm(heads(wq(x), n_head), q_norm, eps);
        let k = rms_norm(heads(wk(x), n_head_kv), k_norm, eps);
        let v = heads(wv(x), n_head_kv);
        if rotated {
            q = rope(q, base = base, factors = factors);
            k = rope(k, base = base, factors = factors);
        }
        wo(attention(q, k, v, window = window))
    }
}
