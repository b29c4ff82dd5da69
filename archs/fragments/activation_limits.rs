//! Clamping limits for the activated gate and the up projection of gated networks: `limit` for routed
//! experts, `limit_shexp` for dense networks and shared experts.

fragment! {
    hparams {
        limit: [f32] = "swiglu_clamp_exp" or 0.0;
        limit_of_file: [f32] = "swiglu_clamp_shexp" or 0.0;
        // A limit of 0 means unlimited.
        let limit_shexp = if limit_of_file > 0.000001 { limit_of_file } else { 3e38 };
    }

    fn limited_glu(gate: [_, T], up: [_, T]) {
        clamp(silu(gate), -3e38, limit_shexp) * clamp(up, -limit_shexp, limit_shexp)
    }
}
