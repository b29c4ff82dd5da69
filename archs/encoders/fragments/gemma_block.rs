//! Block of Gemma's vision transformer: attention between all patches with RMS norms per query, key, and value head,
//! and a gated feed-forward network. RMS norms precede and follow both. Queries and keys are rotated by columns and
//! rows.

fragment! {
    tensors {
        ln1, ln2: vector [n_embd];
        use vit_attention, gated_ffn;
        q_norm, k_norm: vector "attn_q_norm", "attn_k_norm" [head_dim];
        attn_post_norm, ffn_post_norm: vector [n_embd];
    }

    fn attend(x: [n_embd, T]) {
        let q = placed(rms_norm(heads(wq(x), n_head), q_norm, layer_norm_eps));
        let k = placed(rms_norm(heads(wk(x), n_head), k_norm, layer_norm_eps));
        let v = rms_norm(heads(wv(x), n_head), layer_norm_eps);
        wo(attention(q, k, v, scale = 1.0))
    }

    fn placed(x: [head_dim, n_head, T]) {
        rope_grid(x, 100.0, pairs = quarters, columns_first = true)
    }
}
