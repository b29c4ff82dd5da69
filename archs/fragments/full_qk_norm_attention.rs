//! `self_attention` with one RMS norm over all query heads and one over all key heads.

fragment! {
    tensors {
        use self_attention;
        q_norm: vector "attn_q_norm" [n_head * head_dim];
        k_norm: vector "attn_k_norm" [n_head_kv * head_dim];
    }

    checkpoint {
        q_norm <- ".self_attn.q_norm";
        k_norm <- ".self_attn.k_norm";
    }

    fn queries(x: [n_embd, T]) {
        heads(rms_norm(wq(x), q_norm), n_head)
    }

    fn keys(x: [n_embd, T]) {
        heads(rms_norm(wk(x), k_norm), n_head_kv)
    }
}
