//! Queries, keys and values limited to a range that the file may give.

fragment! {
    hparams {
        clamp_kqv: f32 = "attention.clamp_kqv" or 0.0;
    }

    fn clamped(x) {
        if clamp_kqv > 0.0 { clamp(x, -clamp_kqv, clamp_kqv) } else { x }
    }
}
