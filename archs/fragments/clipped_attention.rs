//! `self_attention` with queries, keys, and values clamped to an optional range from the file.

fragment! {
    hparams {
        clamp_kqv: f32 = "attention.clamp_kqv" or 0.0;
        check clamp_kqv >= 0.0, "attention.clamp_kqv must not be negative";
    }

    tensors {
        use self_attention;
    }

    fn queries(x: [n_embd, T]) {
        heads(clip_qkv(wq(x)), n_head)
    }

    fn keys(x: [n_embd, T]) {
        heads(clip_qkv(wk(x)), n_head_kv)
    }

    fn values(x: [n_embd, T]) {
        heads(clip_qkv(wv(x)), n_head_kv)
    }

    // A limit of 0 disables clamping.
    fn clip_qkv(x: [_, T]) {
        if clamp_kqv > 0.0 { clamp(x, -clamp_kqv, clamp_kqv) } else { x }
    }
}
