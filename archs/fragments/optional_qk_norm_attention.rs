//! `self_attention` with optional RMS norms per query and key head.

fragment! {
    needs(eps: f32);

    tensors {
        use self_attention;
        q_norm?, k_norm?: vector "attn_q_norm", "attn_k_norm" [head_dim];
    }

    fn queries(x) {
        let q = heads(wq(x), n_head);
        if has(q_norm) { rms_norm(q, q_norm, eps) } else { q }
    }

    fn keys(x) {
        let k = heads(wk(x), n_head_kv);
        if has(k_norm) { rms_norm(k, k_norm, eps) } else { k }
    }
}
