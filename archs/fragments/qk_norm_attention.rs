//! `self_attention` with RMS norms per query and key head before the rotation.

fragment! {
    needs(eps: f32);

    tensors {
        use self_attention;
        q_norm, k_norm: vector "attn_q_norm", "attn_k_norm" [head_dim];
    }

    fn queries(x) {
        rms_norm(heads(wq(x), n_head), q_norm, eps)
    }

    fn keys(x) {
        rms_norm(heads(wk(x), n_head_kv), k_norm, eps)
    }
}
