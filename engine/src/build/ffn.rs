//! Feed-forward networks whose tensors a file may lack.

use crate::graph::{TensorId, Unary};
use crate::model::Linear;

use super::Builder;

impl Builder<'_> {
    /// `down(silu(gate(x)) * up(x))` for `x [n_embd, T]`, in layers that must have the three, `ffn_gate`, `ffn_up` and `ffn_down` with
    /// `suffix` behind, although not every layer does. Activated gates are at most `limit`, ups within `limit` of 0; 0 is off.
    pub fn gated_ffn(&mut self, tensors: [Option<Linear>; 3], suffix: &str, x: TensorId, limit: f32) -> TensorId {
        let names = ["gate", "up", "down"];
        let [gate, up, down] =
            std::array::from_fn(|i| self.present(&tensors[i], format_args!("ffn_{}{suffix}", names[i])));
        let (gate, up) = (self.linear(gate, x), self.linear(up, x));
        let y = self.glu_within(Unary::Silu, gate, up, Some(limit));
        self.linear(down, y)
    }
}
