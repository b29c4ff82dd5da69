//! Block of a vision transformer (ViT): attention between all patches, and a feed-forward network without a gate of
//! size `width`. A layer norm precedes each. Older files store the two matrices of the network under swapped names.
//! Encoders with rotary positions replace `placed`.

fragment! {
    options(activation = gelu, width = n_ff);

    tensors {
        ln1, ln2: norm [n_embd];
        use vit_attention;
        old_up?: linear "ffn_down" [n_embd -> width];
        if has(old_up) {
            old_down: linear "ffn_up" [width -> n_embd];
        } else {
            up:   linear "ffn_up"   [n_embd -> width];
            down: linear "ffn_down" [width -> n_embd];
        }
    }

    fn ffn(x: [n_embd, _]) {
        if has(old_up) { old_down(activation(old_up(x))) } else { down(activation(up(x))) }
    }
}
