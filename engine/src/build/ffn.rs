//! Feed-forward networks whose tensors a file may lack.

use crate::graph::{TensorId, Unary};
use crate::model::Linear;

use super::Builder;

impl Builder<'_> {
    /// `down(silu(gate(x)) * up(x))` for `x [n_embd, T]`, in layers that must have the three although not every layer does. Activated
    /// gates are at most `limit`, ups within `limit` of 0; 0 is off.
    pub fn gated_ffn(
        &mut self,
        gate: &Option<Linear>,
        up: &Option<Linear>,
        down: &Option<Linear>,
        x: TensorId,
        limit: f32,
    ) -> TensorId {
        let (gate, up, down) = (self.present(gate), self.present(up), self.present(down));
        let (gate, up) = (self.linear(gate, x), self.linear(up, x));
        let y = self.glu_within(Unary::Silu, gate, up, Some(limit));
        self.linear(down, y)
    }
}
