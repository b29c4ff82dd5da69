//! Hyper-connections: `n` residual streams `[n_embd, n, T]` (Zhu et al., arXiv 2409.19606). With doubly
//! stochastic mixing weights: Xie et al., arXiv 2512.24880.

use super::Builder;
use crate::graph::TensorId;

impl Builder<'_> {
    /// Normalizes each row of `x [n * n, T]` to a doubly stochastic matrix; see
    /// [`Op::Sinkhorn`](crate::graph::Op::Sinkhorn).
    pub fn sinkhorn(&mut self, x: TensorId, n: usize, iterations: usize, eps: f32) -> TensorId {
        let y = self.g.sinkhorn(x, n, iterations, eps);
        self.ok(y, x)
    }

    /// Mixes the heads of `x [d, n, T]` with `m [n * n, T]`. Head `i` of the result is the sum over `j` of `m[i + n
    /// j]` times head `j`.
    pub fn mix_heads(&mut self, x: TensorId, m: TensorId) -> TensorId {
        let ne @ [d, n, n_tokens, _] = self.g.tensor(x).ne;
        let x = self.dense(x);
        let mut sum = None;
        for j in 0..n {
            if !self.goes_on() {
                break;
            }
            let nb = self.g.tensor(x).nb;
            let head = self.g.view(x, [d, 1, n_tokens, 1], nb, j * nb[1]);
            let head = self.ok(head, x);
            let head = self.g.repeat(head, ne);
            let head = self.ok(head, x);
            let weights = self.slice(m, j * n, (j + 1) * n);
            let weights = self.dense(weights);
            let weights = self.g.reshape(weights, [1, n, n_tokens, 1]);
            let weights = self.ok(weights, m);
            let part = self.mul(head, weights);
            sum = Some(match sum {
                None => part,
                Some(sum) => self.add(sum, part),
            });
        }
        sum.unwrap_or(x)
    }
}
