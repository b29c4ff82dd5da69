//! Attention over depth: layers read a softmax-weighted sum of earlier values of the residual stream.

use super::Builder;
use super::handles::Vector;
use crate::graph::TensorId;

impl Builder<'_> {
    /// Appends `x [n, T]` to a bank of earlier values `[n, c, T]`, or starts one: `[n, c + 1, T]`.
    pub fn bank(&mut self, x: TensorId, bank: Option<TensorId>) -> TensorId {
        let [n, n_tokens, ..] = self.g.tensor(x).ne;
        let x = self.dense(x);
        let one = self.g.reshape(x, [n, 1, n_tokens, 1]);
        let one = self.ok(one, x);
        match bank {
            Some(bank) => self.concat(bank, one, 1),
            None => one,
        }
    }

    /// Returns the weighted sum `[n, T]` of `x` and the values of the bank. Weights are the softmax of the dot
    /// products of `score [n]` with the RMS norms of the values.
    pub fn recall(&mut self, x: TensorId, bank: TensorId, score: Vector, eps: f32) -> TensorId {
        let all = self.bank(x, Some(bank));
        let [n, count, n_tokens, _] = self.g.tensor(all).ne;
        let scores = self.rms_norm(all, Some(score), eps);
        let scores = self.sum_rows(scores);
        let scores = self.reshaped(scores, [count, n_tokens, 1, 1]);
        let weights = self.softmax(scores);
        let weights = self.reshaped(weights, [1, count, n_tokens, 1]);
        let weighted = self.mul(all, weights);
        self.sum_experts(weighted, n, n_tokens, count)
    }

    /// Returns a contiguous tensor with a different shape.
    pub(super) fn reshaped(&mut self, x: TensorId, ne: [usize; 4]) -> TensorId {
        let y = self.g.reshape(x, ne);
        self.ok(y, x)
    }
}
