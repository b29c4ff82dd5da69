//! Multi-query attention of MobileNetV5. The result has a layer scale.

fragment! {
    options(width, queries, size);

    tensors {
        attn_norm: vector "norm"             [width];
        wq:        linear "attn.query.proj"  [width -> queries];
        wk:        linear "attn.key.proj"    [width -> size];
        wv:        linear "attn.value.proj"  [width -> size];
        wo:        linear "attn.output.proj" [queries -> width];
    }

    fn attended(x: [_, _], keys: [_, _], values: [_, _], n = 1) {
        wo(full_attention(heads(wq(x), n), heads(wk(keys), 1), heads(wv(values), 1))) * gamma
    }
}
