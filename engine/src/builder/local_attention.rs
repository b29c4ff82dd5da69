//! Attention over neighboring columns without a cache, with positions relative to the query.

use kernels::GgmlType;

use crate::graph::TensorId;

use super::Builder;
use super::convolve::F32;
use super::inputs::Sinusoids;

/// Arguments of [`Builder::local_attention`].
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub struct LocalAttentionArgs {
    /// Factor of the scores; `1 / sqrt(d)` by default.
    pub scale: Option<f32>,
    /// Bound of the scores, which `c * tanh(x / c)` approaches.
    pub softcap: Option<f32>,
}

/// Addend of the scores of columns outside of the input.
const MASKED: f32 = -1e9;

impl Builder<'_> {
    /// Attends from each column to its neighbors: q and k `[d, n, T]`, v `[dv, n, T]` -> `[dv * n, T]`. The columns of
    /// `relative [d * n, W]` are added to the keys of the W neighbors, and `before` neighbors precede the query.
    pub fn local_attention(
        &mut self,
        q: TensorId,
        k: TensorId,
        v: TensorId,
        relative: TensorId,
        before: usize,
        args: LocalAttentionArgs,
    ) -> TensorId {
        let ([d, n, t, _], dv) = (self.g.tensor(q).ne, self.g.tensor(v).ne[0]);
        let w = self.g.tensor(relative).ne[1];
        let around = [before, w.saturating_sub(before + 1)];
        let column = d * n * F32;
        let keys = self.merge(k);
        let padded = self.padded(keys, 1, around);
        let near = self.unfolded(padded, [d, w, n, t], [F32, column, d * F32, column], 0);
        let relative = self.dense(relative);
        let offsets = self.unfolded(relative, [d, w, n, 1], [F32, column, d * F32, column * w], 0);
        let near = self.add(near, offsets);
        let q = self.dense(q);
        let q = self.reshaped(q, [d, 1, n, t]);
        let products = self.mul(near, q);
        let scores = self.sum_rows(products);
        let scores = self.reshaped(scores, [w, n, t, 1]);
        let scores = self.scale(scores, args.scale.unwrap_or(1.0 / (d as f32).sqrt()));
        let scores = match args.softcap {
            Some(cap) => self.softcap(scores, cap),
            None => scores,
        };
        let mask = self.columns_outside(keys, around);
        let scores = self.add(scores, mask);
        let weights = self.softmax(scores);
        let weights = self.reshaped(weights, [w, 1, n, t]);
        let values = self.merge(v);
        let values = self.padded(values, 1, around);
        let column = dv * n * F32;
        let near = self.unfolded(values, [w, dv, n, t], [column, F32, dv * F32, column], 0);
        let products = self.mul(near, weights);
        let y = self.sum_rows(products);
        self.reshaped(y, [dv * n, t, 1, 1])
    }

    /// Returns 0 for each neighbor of a column of `x [d, T]`, and [`MASKED`] outside of `x`: `[W, 1, T]`.
    fn columns_outside(&mut self, x: TensorId, around: [usize; 2]) -> TensorId {
        let one = self.slice(x, 0, 1);
        let one = self.g.scale(one, 0.0, 1.0);
        let inside = self.ok(one, x);
        let t = self.g.tensor(inside).ne[1];
        let w = around[0] + 1 + around[1];
        let inside = self.padded(inside, 1, around);
        let inside = self.unfolded(inside, [w, 1, t, 1], [F32, F32, F32, F32 * t], 0);
        let mask = self.g.scale(inside, -MASKED, MASKED);
        self.ok(mask, inside)
    }

    /// Returns the input of sinusoids of the distances from `before` down to `-after`: `[d, before + 1 + after]`.
    pub fn sinusoids(&mut self, d: usize, before: usize, after: usize) -> TensorId {
        let known = |s: &&Sinusoids| s.before == before && s.after == after && s.d == d;
        if let Some(known) = self.inputs.sinusoids.iter().find(known) {
            return known.rows;
        }
        let n = before.saturating_add(after).saturating_add(1);
        let rows = self.g.input(GgmlType::F32, [d, n, 1, 1], "sinusoids");
        self.inputs.sinusoids.push(Sinusoids { d, before, after, rows });
        rows
    }
}
