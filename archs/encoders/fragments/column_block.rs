//! Block of a vision transformer (ViT). `attend_all` takes any number of columns, which have no positions.

fragment! {
    options(activation = gelu, width = n_ff);

    tensors {
        use vit_block(activation = activation, width = width);
    }

    fn attend_all(x: [n_embd, _]) {
        wo(full_attention(heads(wq(x), n_head), heads(wk(x), n_head), heads(wv(x), n_head)))
    }
}
