//! Grouped-query attention: the four projections, and the whole of it on a normed `[n_embd, T]`, with rotary positions, with them
//! where a condition holds, or without.

fragment! {
    tensors {
        wq: linear "attn_q"      [n_embd -> n_head * head_dim];
        wk: linear "attn_k"      [n_embd -> n_head_kv * head_dim];
        wv: linear "attn_v"      [n_embd -> n_head_kv * head_dim_v];
        wo: linear "attn_output" [n_head * head_dim_v -> n_embd];
    }

    fn attend(x, base?, rope_scale?, dims?, factors?, short?, long?, magnitude?, beta_fast?, scale?, softcap?, sinks?, window?) {
        let q = rope(heads(wq(x), n_head), base = base, scale = rope_scale, dims = dims, factors = factors,
                     short = short, long = long, magnitude = magnitude, beta_fast = beta_fast);
        let k = rope(heads(wk(x), n_head_kv), base = base, scale = rope_scale, dims = dims, factors = factors,
                     short = short, long = long, magnitude = magnitude, beta_fast = beta_fast);
        let v = heads(wv(x), n_head_kv);
        wo(attention(q, k, v, scale = scale, softcap = softcap, sinks = sinks, window = window))
    }

    fn attend_where(x, rotated, base?, factors?, short?, long?, scale?, alibi?, sinks?, window?) {
        let q = heads(wq(x), n_head);
        let k = heads(wk(x), n_head_kv);
        let v = heads(wv(x), n_head_kv);
        if rotated {
            q = rope(q, base = base, factors = factors, short = short, long = long);
            k = rope(k, base = base, factors = factors, short = short, long = long);
        }
        wo(attention(q, k, v, scale = scale, alibi = alibi, sinks = sinks, window = window))
    }

    fn attend_unrotated(x, scale?, alibi?, window?) {
        let q = heads(wq(x), n_head);
        let k = heads(wk(x), n_head_kv);
        let v = heads(wv(x), n_head_kv);
        wo(attention(q, k, v, scale = scale, alibi = alibi, window = window))
    }
}
