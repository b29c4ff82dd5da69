//! `self_attention` with optional RMS norms per query and key head.

fragment! {
    tensors {
        use self_attention;
        q_norm?, k_norm?: vector "attn_q_norm", "attn_k_norm" [head_dim];
    }

    checkpoint {
        q_norm <- ".self_attn.q_norm";
        k_norm <- ".self_attn.k_norm";
    }

    fn queries(x: [n_embd, T]) {
        let q = heads(wq(x), n_head);
        if has(q_norm) { rms_norm(q, q_norm) } else { q }
    }

    fn keys(x: [n_embd, T]) {
        let k = heads(wk(x), n_head_kv);
        if has(k_norm) { rms_norm(k, k_norm) } else { k }
    }
}
