//! Block of a vision transformer (ViT): attention between all patches, and a feed-forward network without a gate,
//! with a layer norm before each. Older files have the names of the two matrices of the network exchanged.

fragment! {
    options(activation = gelu);

    tensors {
        ln1, ln2: norm [n_embd];
        wq:      linear "attn_q"   [n_embd -> n_head * head_dim];
        wk:      linear "attn_k"   [n_embd -> n_head * head_dim];
        wv:      linear "attn_v"   [n_embd -> n_head * head_dim];
        wo:      linear "attn_out" [n_head * head_dim -> n_embd];
        old_up?: linear "ffn_down" [n_embd -> n_ff];
        if has(old_up) {
            old_down: linear "ffn_up" [n_ff -> n_embd];
        } else {
            up:   linear "ffn_up"   [n_embd -> n_ff];
            down: linear "ffn_down" [n_ff -> n_embd];
        }
    }

    fn attend(x: [n_embd, T]) {
        wo(attention(heads(wq(x), n_head), heads(wk(x), n_head), heads(wv(x), n_head)))
    }

    fn ffn(x: [n_embd, T]) {
        if has(old_up) { old_down(activation(old_up(x))) } else { down(activation(up(x))) }
    }
}
