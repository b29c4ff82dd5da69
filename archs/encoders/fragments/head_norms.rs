//! RMS norms of the queries and keys of each head before they are rotated, for `vit_attention`.

fragment! {
    tensors {
        q_norm, k_norm: vector "attn_q_norm", "attn_k_norm" [head_dim];
    }

    fn normed_attention(x: [n_embd, T]) {
        let q = placed(rms_norm(heads(wq(x), n_head), q_norm, layer_norm_eps));
        let k = placed(rms_norm(heads(wk(x), n_head), k_norm, layer_norm_eps));
        wo(attention(q, k, heads(wv(x), n_head)))
    }
}
