//! Block of a transformer over a prefix of columns with bidirectional attention, and further columns with causal
//! attention. Queries and keys rotate by the index of the column.

fragment! {
    tensors {
        ln1, ln2: vector [n_embd];
        wq:   linear "attn_q"   [n_embd -> n_head * head_dim];
        wk:   linear "attn_k"   [n_embd -> n_head_kv * head_dim];
        wv:   linear "attn_v"   [n_embd -> n_head_kv * head_dim];
        wo:   linear "attn_out" [n_head * head_dim -> n_embd];
        gate: linear "ffn_gate" [n_embd -> n_ff];
        up:   linear "ffn_up"   [n_embd -> n_ff];
        down: linear "ffn_down" [n_ff -> n_embd];
    }

    fn attend_to_prefix(x: [n_embd, _], prefix: [n_embd, _]) {
        let q = rope_time(heads(wq(x), n_head), 1000000.0, head_dim, halves = true);
        let k = rope_time(heads(wk(x), n_head_kv), 1000000.0, head_dim, halves = true);
        wo(prefix_attention(q, k, heads(wv(x), n_head_kv), prefix))
    }

    fn ffn(x: [n_embd, _]) { down(silu(gate(x)) * up(x)) }
}
