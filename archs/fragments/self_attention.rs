//! Grouped-query attention (GQA) on a normalized input `[n_embd, T]`: query, key, and value projections,
//! rotary positions if `rotated`, the KV cache, and the output projection. `attend_heads` omits the output
//! projection. Models that normalize or clamp queries, keys, or values replace `queries`, `keys`, or
//! `values`.

fragment! {
    tensors {
        wq: linear "attn_q"      [n_embd -> n_head * head_dim];
        wk: linear "attn_k"      [n_embd -> n_head_kv * head_dim];
        wv: linear "attn_v"      [n_embd -> n_head_kv * head_dim_v];
        wo: linear "attn_output" [n_head * head_dim_v -> n_embd];
    }

    checkpoint {
        wq <- ".self_attn.q_proj";
        wk <- ".self_attn.k_proj";
        wv <- ".self_attn.v_proj";
        wo <- ".self_attn.o_proj";
    }

    fn attend(x: [n_embd, T], ..) {
        wo(attend_heads(x, ..))
    }

    fn attend_heads(x: [n_embd, T], rotated = true, rope_scale?, ..) {
        let q = queries(x);
        let k = keys(x);
        if rotated {
            q = rope(q, scale = rope_scale, ..);
            k = rope(k, scale = rope_scale, ..);
        }
        attention(q, k, values(x), ..)
    }

    fn queries(x: [n_embd, T]) {
        heads(wq(x), n_head)
    }

    fn keys(x: [n_embd, T]) {
        heads(wk(x), n_head_kv)
    }

    fn values(x: [n_embd, T]) {
        heads(wv(x), n_head_kv)
    }
}
