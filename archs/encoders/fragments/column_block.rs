//! Block of a vision transformer (ViT) that also takes other numbers of columns than patches, which have no positions.

fragment! {
    tensors {
        use vit_block;
    }

    fn attend_all(x: [n_embd, _]) {
        wo(full_attention(heads(wq(x), n_head), heads(wk(x), n_head), heads(wv(x), n_head)))
    }
}
