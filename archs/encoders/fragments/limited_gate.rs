//! Limits of the gate and of the other operand of a gated network. The gate is limited before its activation.

fragment! {
    hparams {
        limit: f32 = "swiglu_clamp";
    }

    fn limited(gate: [_, _], up: [_, _]) { silu(clamp(gate, -3e38, limit)) * clamp(up, -limit, limit) }
}
