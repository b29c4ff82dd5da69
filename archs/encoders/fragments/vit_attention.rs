//! Attention between the patches of an image on a normalized input. `shared` is the number of heads of keys and values.
//! Encoders with rotary positions replace `placed`.

fragment! {
    options(shared = n_head);

    tensors {
        wq: linear "attn_q"   [n_embd -> n_head * head_dim];
        wk: linear "attn_k"   [n_embd -> shared * head_dim];
        wv: linear "attn_v"   [n_embd -> shared * head_dim];
        wo: linear "attn_out" [n_head * head_dim -> n_embd];
    }

    fn attend(x: [n_embd, T], ..) {
        wo(attention(placed(heads(wq(x), n_head)), placed(heads(wk(x), shared)), heads(wv(x), shared), ..))
    }

    fn placed(x: [head_dim, _, T]) {
        x
    }
}
