//! Linear attention, which keeps a state matrix per head instead of keys and values.

use super::Builder;
use crate::graph::{LinearAttention, Recurrence, TensorId};

/// Keyword arguments of [`Builder::linear_attention`].
#[derive(Clone, Copy, Default, Debug)]
pub struct LinearAttentionArgs {
    /// Log decay of the state per token, f32 `[1 or dk, n, T]`.
    pub decay: Option<TensorId>,
    /// Write strength, f32 `[1, n, T]`; requires `decay`.
    pub beta: Option<TensorId>,
    /// Whether the delta rule is applied.
    pub delta: bool,
    /// Constant decay used without `decay`; see [`LinearAttention::slope`].
    pub slope: f32,
    /// Whether the key heads are tiled; see [`LinearAttention::tiled`].
    pub tiled: bool,
    /// Factor applied to the output; default `1 / sqrt(dk)`.
    pub scale: Option<f32>,
}

impl Builder<'_> {
    /// Computes linear attention of `q`, `k [dk, m, T]`, and `v [dv, n, T]` with a state of the layer: `[dv, n, T]`.
    /// See [`Recurrence::LinearAttention`].
    pub fn linear_attention(&mut self, q: TensorId, k: TensorId, v: TensorId, args: LinearAttentionArgs) -> TensorId {
        let dk = self.g.tensor(q).ne[0];
        let p = LinearAttention {
            scale: args.scale.unwrap_or(1.0 / (dk as f32).sqrt()),
            delta: args.delta,
            tiled: args.tiled,
            slope: args.slope,
        };
        let recurrence = Recurrence::LinearAttention(p);
        match (args.decay, args.beta) {
            (None, _) => self.recur(recurrence, &[q, k, v]),
            (Some(decay), None) => self.recur(recurrence, &[q, k, v, decay]),
            (Some(decay), Some(beta)) => self.recur(recurrence, &[q, k, v, decay, beta]),
        }
    }
}
