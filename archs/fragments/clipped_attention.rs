//! `self_attention` whose queries, keys and values are clipped to a range that the file may give.

fragment! {
    hparams {
        clamp_kqv: f32 = "attention.clamp_kqv" or 0.0;
    }

    tensors {
        use self_attention;
    }

    fn queries(x) {
        heads(clip_qkv(wq(x)), n_head)
    }

    fn keys(x) {
        heads(clip_qkv(wk(x)), n_head_kv)
    }

    fn values(x) {
        heads(clip_qkv(wv(x)), n_head_kv)
    }

    // 0 is no limit.
    fn clip_qkv(x) {
        if clamp_kqv > 0.0 { clamp(x, -clamp_kqv, clamp_kqv) } else { x }
    }
}
