//! `self_attention` with RMS norms per query and key head before the rotation.

fragment! {
    tensors {
        use self_attention;
        q_norm, k_norm: vector "attn_q_norm", "attn_k_norm" [head_dim];
    }

    checkpoint {
        q_norm <- ".self_attn.q_norm";
        k_norm <- ".self_attn.k_norm";
    }

    fn queries(x: [n_embd, T]) {
        rms_norm(heads(wq(x), n_head), q_norm)
    }

    fn keys(x: [n_embd, T]) {
        rms_norm(heads(wk(x), n_head_kv), k_norm)
    }
}
