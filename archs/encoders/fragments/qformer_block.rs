//! Q-Former block with learned queries: self-attention of the queries, cross-attention to a window of columns, and a
//! feed-forward network. Layer norms follow all parts.

fragment! {
    needs(n_kept: usize, window: usize, per_window: usize, n_head_proj: usize, n_ff_proj: usize);

    tensors {
        self_norm, cross_norm, ffn_norm: norm "self_attn_norm", "cross_attn_norm", "ffn_norm" [n_embd];
        self_q:  linear "self_attn_q"    [n_embd -> n_embd];
        self_k:  linear "self_attn_k"    [n_embd -> n_embd];
        self_v:  linear "self_attn_v"    [n_embd -> n_embd];
        self_o:  linear "self_attn_out"  [n_embd -> n_embd];
        cross_q: linear "cross_attn_q"   [n_embd -> n_embd];
        cross_k: linear "cross_attn_k"   [n_embd * (n_kept + 1) -> n_embd];
        cross_v: linear "cross_attn_v"   [n_embd * (n_kept + 1) -> n_embd];
        cross_o: linear "cross_attn_out" [n_embd -> n_embd];
        up:      linear "ffn_up"         [n_embd -> n_ff_proj];
        down:    linear "ffn_down"       [n_ff_proj -> n_embd];
    }

    fn to_queries(y: [n_embd, _]) {
        let q = heads(self_q(y), n_head_proj);
        let h = block_attention(q, heads(self_k(y), n_head_proj), heads(self_v(y), n_head_proj), per_window, per_window);
        layer_norm(y + self_o(h), self_norm, 0.000000000001)
    }

    fn to_window(y: [n_embd, _], x: [n_embd * (n_kept + 1), _]) {
        let q = heads(cross_q(y), n_head_proj);
        let h = block_attention(q, heads(cross_k(x), n_head_proj), heads(cross_v(x), n_head_proj), per_window, window);
        let y = layer_norm(y + cross_o(h), cross_norm, 0.000000000001);
        layer_norm(y + down(gelu_erf(up(y))), ffn_norm, 0.000000000001)
    }
}
