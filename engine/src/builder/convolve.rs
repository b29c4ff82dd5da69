//! Convolutions over columns, composed of strided views, copies, and matmuls.

use crate::graph::{TensorId, Unary};

use super::Builder;
use super::handles::{Linear, Vector};

/// Arguments of [`Builder::conv_2d`].
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Conv2dArgs {
    /// The taps along time are contiguous in the weights.
    pub time_first: bool,
}

/// Arguments of [`Builder::conv_grid`] and [`Builder::depthwise_grid`].
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct GridConvArgs {
    /// Pads lines with as few zeros as needed to cover all values ("same" padding). An odd zero follows the values.
    pub same: bool,
}

/// Strides and padding of a convolution along both axes.
#[derive(Clone, Copy)]
pub(super) struct Steps {
    pub stride: usize,
    pub args: GridConvArgs,
}

impl Steps {
    /// Returns strides with equal padding on both sides.
    pub(super) fn of(stride: usize) -> Steps {
        Steps {
            stride: stride.max(1),
            args: GridConvArgs::default(),
        }
    }

    /// Returns the number of results along an axis of `n` values.
    fn results(self, n: usize) -> usize {
        n.div_ceil(self.stride)
    }

    /// Returns the numbers of zeros before and after an axis of `n` values, for a convolution of `taps` values.
    fn zeros(self, n: usize, taps: usize) -> [usize; 2] {
        if !self.args.same {
            return [taps / 2; 2];
        }
        let last = self.results(n).saturating_sub(1) * self.stride;
        let all = (last + taps).saturating_sub(n);
        [all / 2, all.div_ceil(2)]
    }
}

/// Maximum number of taps of a convolution along an axis.
const MAX_TAPS: usize = 16;

/// Bytes of a value.
pub(super) const F32: usize = size_of::<f32>();

impl Builder<'_> {
    /// Applies a convolution of 3 x 3 taps with stride 2 to `x [c, F, T]`: `[m, F / 2, T / 2]`, rounded up. Zeros
    /// surround the values. The weights are `w [9 * c -> m]`.
    pub fn conv_2d(&mut self, x: TensorId, w: Linear, args: Conv2dArgs) -> TensorId {
        self.conv_by(x, w, Steps::of(2), args.time_first)
    }

    /// Applies a convolution like [`conv_2d`](Self::conv_2d) with other strides and padding.
    pub(super) fn conv_by(&mut self, x: TensorId, w: Linear, steps: Steps, time_first: bool) -> TensorId {
        let ([c, f, t, _], stride) = (self.g.tensor(x).ne, steps.stride);
        let (rows, columns) = (steps.results(f), steps.results(t));
        let x = self.padded(x, 2, steps.zeros(t, 3));
        let taps = self.taps(x, steps);
        let column = 3 * c * rows * F32;
        let taps = if time_first {
            let ne = [3, 3 * c * rows, columns, 1];
            self.unfolded(taps, ne, [column, F32, stride * column, stride * column * columns], 0)
        } else {
            let ne = [3, 3, c * rows, columns];
            self.unfolded(taps, ne, [F32, column, 3 * F32, stride * column], 0)
        };
        let taps = self.reshaped(taps, [9 * c, rows * columns, 1, 1]);
        let y = self.linear(w, taps);
        let m = self.g.tensor(y).ne[0];
        self.reshaped(y, [m, rows, columns, 1])
    }

    /// Applies a convolution of 3 x 3 taps with stride 2 to windows of `n` frames `x [c * F, n, T]`. Returns `[m * F /
    /// 2, (n - 1) / 2, T]`. F / 2 is rounded up, and zeros surround the values along F. The weights are `w [9 * c ->
    /// m]`, the taps of frames first.
    pub fn conv_frames(&mut self, x: TensorId, w: Linear) -> TensorId {
        let [width, n, t, _] = self.g.tensor(x).ne;
        let weight = self.leaf(w.weight);
        let c = self.g.tensor(weight).ne[0] / 9;
        let f = width.checked_div(c).unwrap_or(0);
        let (rows, frames) = (f.div_ceil(2), n.saturating_sub(1) / 2);
        let x = self.dense(x);
        let x = self.reshaped(x, [c, f, n * t, 1]);
        let taps = self.taps(x, Steps::of(2));
        let column = 3 * c * rows * F32;
        let taps = self.unfolded(
            taps,
            [3, 3 * c * rows, frames, t],
            [column, F32, 2 * column, n * column],
            0,
        );
        let taps = self.reshaped(taps, [9 * c, rows * frames * t, 1, 1]);
        let y = self.linear(w, taps);
        let m = self.g.tensor(y).ne[0];
        self.reshaped(y, [m * rows, frames, t, 1])
    }

    /// Returns the 3 neighbors along F for each output row of a convolution of `x [c, F, T]`, between zeros:
    /// `[3, c, F / stride, T]`, rounded up.
    fn taps(&mut self, x: TensorId, steps: Steps) -> TensorId {
        let [c, f, t, _] = self.g.tensor(x).ne;
        let [before, after] = steps.zeros(f, 3);
        let x = self.padded(x, 1, [before, after]);
        let (row, column) = (c * F32, c * (before + f + after) * F32);
        let ne = [3, c, steps.results(f), t];
        self.unfolded(x, ne, [row, F32, steps.stride * row, column], 0)
    }

    /// Applies a depthwise convolution to the channels of `x [c, T]`, with weights `w [n, c]`: `[c, T]`. Of the `n`
    /// columns that a result depends on, `before` precede its column. Zeros surround the columns.
    pub fn depthwise(&mut self, x: TensorId, w: Vector, before: usize) -> TensorId {
        let w = self.leaf(w.0);
        let ([n, ..], [c, t, ..]) = (self.g.tensor(w).ne, self.g.tensor(x).ne);
        let x = self.padded(x, 1, [before, n.saturating_sub(before + 1)]);
        let column = c * F32;
        let taps = self.unfolded(x, [n, c, t, 1], [column, F32, column, column * t], 0);
        let taps = self.mul(taps, w);
        let y = self.sum_rows(taps);
        self.reshaped(y, [c, t, 1, 1])
    }

    /// Applies a depthwise convolution of 3 x 3 taps with stride 2 to the channels of `x [c, F, T]`:
    /// `[c, F / 2, T / 2]`, rounded up. Zeros surround the values. The weights are `w [9, c]`.
    pub fn depthwise_2d(&mut self, x: TensorId, w: Vector) -> TensorId {
        self.depthwise_by(x, w, Steps::of(2))
    }

    /// Applies a depthwise convolution to `x [c, F, T]`, with `taps` weights along both axes, `w [taps * taps, c]`.
    /// Adds the products tap by tap, so that no copy contains all taps.
    pub(super) fn depthwise_by(&mut self, x: TensorId, w: Vector, steps: Steps) -> TensorId {
        let ([c, f, t, _], w) = (self.g.tensor(x).ne, self.leaf(w.0));
        let (rows, columns) = (steps.results(f), steps.results(t));
        let taps = (self.g.tensor(w).nelements() / c.max(1)).isqrt().min(MAX_TAPS);
        let w = self.reshaped(w, [taps * taps, c, 1, 1]);
        let by_tap = self.g.permute(w, [1, 0, 2, 3]);
        let by_tap = self.ok(by_tap, w);
        let by_tap = self.dense(by_tap);
        let [before, after] = steps.zeros(f, taps);
        let x = self.padded(x, 1, [before, after]);
        let x = self.padded(x, 2, steps.zeros(t, taps));
        let (row, column) = (c * F32, c * (before + f + after) * F32);
        let nb = [F32, steps.stride * row, steps.stride * column, column * t];
        let mut sum = None;
        for i in 0..taps * taps {
            let near = self
                .g
                .view(x, [c, rows, columns, 1], nb, i % taps * row + i / taps * column);
            let near = self.ok(near, x);
            let weights = self.g.view(by_tap, [c, 1, 1, 1], [F32, row, row, row], i * row);
            let weights = self.ok(weights, by_tap);
            let product = self.mul(near, weights);
            sum = Some(match sum {
                Some(sum) => self.add(sum, product),
                None => product,
            });
        }
        sum.unwrap_or(x)
    }

    /// Normalizes `x [d, T]` per channel with the stored statistics `mean [d]` and `variance [d]`.
    pub fn batch_norm(&mut self, x: TensorId, mean: Vector, variance: Vector, eps: f32) -> TensorId {
        let [mean, variance] = [mean, variance].map(|w| self.leaf(w.0));
        let moved = self.sub(x, mean);
        let variance = self.g.scale(variance, 1.0, eps);
        let variance = self.ok(variance, x);
        let deviation = self.unary(Unary::Sqrt, variance);
        let y = self.g.div(moved, deviation);
        self.ok(y, moved)
    }

    /// Returns `x` between zeros along a dimension, as a contiguous tensor.
    pub(super) fn padded(&mut self, x: TensorId, dim: usize, [before, after]: [usize; 2]) -> TensorId {
        let mut x = self.dense(x);
        let t = self.g.tensor(x);
        let (ne, nb) = (t.ne, t.nb);
        let mut one = ne;
        one[dim] = 1;
        let zero = self.g.view(x, one, nb, 0);
        let zero = self.ok(zero, x);
        let zero = self.scale(zero, 0.0);
        for (n, is_first) in [(before, true), (after, false)] {
            if n > 0 {
                let mut ne = ne;
                ne[dim] = n;
                let zeros = self.g.repeat(zero, ne);
                let zeros = self.ok(zeros, x);
                let [a, b] = if is_first { [zeros, x] } else { [x, zeros] };
                x = self.concat(a, b, dim);
            }
        }
        x
    }

    /// Returns a contiguous copy of a view of `x`, whose parts may overlap.
    pub(super) fn unfolded(&mut self, x: TensorId, ne: [usize; 4], nb: [usize; 4], offset: usize) -> TensorId {
        let view = self.g.view(x, ne, nb, offset);
        let view = self.ok(view, x);
        let y = self.g.cont(view, ne);
        self.ok(y, view)
    }
}
