//! Block shared by T5's encoder and decoder: unscaled attention with relative position biases, and a feed-forward
//! network. The network has a GELU gate, or ReLU if the file has no gate.

fragment! {
    needs(n_buckets: usize);

    tensors {
        attn_norm, ffn_norm: vector [n_embd];
        rel_b?: vector "attn_rel_b" [n_head, n_buckets];
        wq:     linear "attn_q"     [n_embd -> n_head * head_dim];
        wk:     linear "attn_k"     [n_embd -> n_head_kv * head_dim];
        wv:     linear "attn_v"     [n_embd -> n_head_kv * head_dim_v];
        wo:     linear "attn_o"     [n_head * head_dim_v -> n_embd];
        gate?:  linear "ffn_gate"   [n_embd -> n_ff];
        up:     linear "ffn_up"     [n_embd -> n_ff];
        down:   linear "ffn_down"   [n_ff -> n_embd];
    }

    fn attend(h: [n_embd, T]) {
        let q = heads(wq(h), n_head);
        let k = heads(wk(h), n_head_kv);
        // A layer without its own biases uses those of the first layer.
        let bias = if has(rel_b) { rel_b } else { first_layer(rel_b) };
        wo(attention(q, k, heads(wv(h), n_head_kv), scale = 1.0, relative = bias))
    }

    fn ffn(h: [n_embd, T]) {
        if has(gate) { down(gelu(gate(h)) * up(h)) } else { down(relu(up(h))) }
    }
}
