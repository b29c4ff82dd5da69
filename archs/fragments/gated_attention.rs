//! Grouped-query attention with RMS norms per query and key head before the rotation, and an elementwise
//! sigmoid gate on the result. The gate is projected together with the queries.

fragment! {
    tensors {
        wq:     linear "attn_q"      [n_embd -> n_head * (2 * head_dim)];
        wk:     linear "attn_k"      [n_embd -> n_head_kv * head_dim];
        wv:     linear "attn_v"      [n_embd -> n_head_kv * head_dim];
        q_norm: vector "attn_q_norm" [head_dim];
        k_norm: vector "attn_k_norm" [head_dim];
        wo:     linear "attn_output" [n_head * head_dim -> n_embd];
    }

    checkpoint {
        wq <- ".self_attn.q_proj";
        wk <- ".self_attn.k_proj";
        wv <- ".self_attn.v_proj";
        q_norm <- ".self_attn.q_norm" plus 1;
        k_norm <- ".self_attn.k_norm" plus 1;
        wo <- ".self_attn.o_proj";
    }

    fn attend(h: [n_embd, T], ..) {
        let qg = heads(wq(h), n_head);
        let q = rope(rms_norm(qg[..head_dim], q_norm));
        let k = rope(rms_norm(heads(wk(h), n_head_kv), k_norm));
        let v = heads(wv(h), n_head_kv);
        wo(attention(q, k, v, ..) * sigmoid(merge(qg[head_dim..])))
    }
}
