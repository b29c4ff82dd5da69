//! Attention between the patches of an image on a normalized input. Encoders with rotary positions replace `placed`.

fragment! {
    tensors {
        wq: linear "attn_q"   [n_embd -> n_head * head_dim];
        wk: linear "attn_k"   [n_embd -> n_head * head_dim];
        wv: linear "attn_v"   [n_embd -> n_head * head_dim];
        wo: linear "attn_out" [n_head * head_dim -> n_embd];
    }

    fn attend(x: [n_embd, T], ..) {
        wo(attention(placed(heads(wq(x), n_head)), placed(heads(wk(x), n_head)), heads(wv(x), n_head), ..))
    }

    fn placed(x: [head_dim, n_head, T]) {
        x
    }
}
