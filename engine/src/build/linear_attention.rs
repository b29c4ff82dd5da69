//! Linear attention: attention by a state instead of stored keys and values.

use super::Builder;
use crate::graph::{LinearAttention, Recurrence, TensorId};

/// What [`Builder::linear_attention`] takes beside queries, keys and values.
#[derive(Clone, Copy, Default, Debug)]
pub struct LinearAttentionArgs {
    /// Logarithm of what a head's state keeps per token, f32 `[1 or dk, n, T]`.
    pub decay: Option<TensorId>,
    /// Factor of what is stored, f32 `[1, n, T]`; only beside a decay.
    pub beta: Option<TensorId>,
    /// Store of a value only what the state does not hold already.
    pub delta: bool,
    /// Without `decay`, see [`LinearAttention::slope`].
    pub slope: f32,
    /// See [`LinearAttention::tiled`].
    pub tiled: bool,
    /// Factor of the result, `1 / sqrt(dk)` if not given.
    pub scale: Option<f32>,
}

impl Builder<'_> {
    /// Takes `q`, `k` `[dk, m, T]` and `v` `[dv, n, T]` through a state of the layer: `[dv, n, T]`. See
    /// [`Recurrence::LinearAttention`].
    pub fn linear_attention(&mut self, q: TensorId, k: TensorId, v: TensorId, args: LinearAttentionArgs) -> TensorId {
        let (dk, [dv, n, ..]) = (self.g.tensor(q).ne[0], self.g.tensor(v).ne);
        let p = LinearAttention {
            scale: args.scale.unwrap_or(1.0 / (dk as f32).sqrt()),
            delta: args.delta,
            tiled: args.tiled,
            slope: args.slope,
        };
        let gates = args.decay.into_iter().chain(args.beta);
        let operands: Vec<TensorId> = [q, k, v].into_iter().chain(gates).map(|x| self.dense(x)).collect();
        self.recur(Recurrence::LinearAttention(p), dk.saturating_mul(dv).saturating_mul(n), &operands)
    }
}
