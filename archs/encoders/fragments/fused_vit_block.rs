//! Block of a vision transformer (ViT) over any number of columns. Queries, keys, and values share one fused matrix. A
//! layer norm precedes attention and the feed-forward network.

fragment! {
    hparams {
        let width = n_head * head_dim;
    }

    tensors {
        ln1, ln2: norm [n_embd];
        wqkv: linear "attn_qkv" [n_embd -> 3 * width];
        wo:   linear "attn_out" [width -> n_embd];
        up:   linear "ffn_up"   [n_embd -> n_ff];
        down: linear "ffn_down" [n_ff -> n_embd];
    }

    fn attend(x: [n_embd, _]) {
        let qkv = wqkv(x);
        let q = heads(qkv[..width], n_head);
        let k = heads(qkv[width..2 * width], n_head);
        wo(full_attention(q, k, heads(qkv[2 * width..], n_head)))
    }

    fn ffn(x: [n_embd, _]) {
        down(gelu_erf(up(x)))
    }
}
