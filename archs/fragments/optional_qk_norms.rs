//! RMS norms on each query and key head where a file has their weights.

fragment! {
    tensors {
        q_norm?, k_norm?: vector "attn_q_norm", "attn_k_norm" [head_dim];
    }

    fn normed_queries(q) {
        if has(q_norm) { rms_norm(q, q_norm, eps) } else { q }
    }

    fn normed_keys(k) {
        if has(k_norm) { rms_norm(k, k_norm, eps) } else { k }
    }
}
