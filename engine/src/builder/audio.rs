//! Operations on audio rows: interleaving for convolutions, pooling, stacking, rotary positions along time, and
//! learned rows around them.

use kernels::GgmlType;

use crate::graph::{Rope, RopeKind, TensorId};

use super::Builder;
use super::handles::Vector;

/// Arguments of [`Builder::rope_time`].
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct RopeTimeArgs {
    /// The pairs are `(i, i + dims / 2)`.
    pub halves: bool,
}

impl Builder<'_> {
    /// Interleaves `n` consecutive parts of `x [n * d, T]`.
    pub fn interleave(&mut self, x: TensorId, n: usize) -> TensorId {
        let parts = self.heads(x, n);
        let places = self.g.permute(parts, [1, 0, 2, 3]);
        let places = self.ok(places, parts);
        self.merge(places)
    }

    /// Returns the mean of each `n` consecutive columns of `x [d, T]`, without the remaining columns: `[d, T / n]`.
    pub fn pool_rows(&mut self, x: TensorId, n: usize) -> TensorId {
        let [d, n_rows, ..] = self.g.tensor(x).ne;
        let n_groups = n_rows.checked_div(n).unwrap_or(0);
        let x = self.dense(x);
        let (ne, nb) = ([d, n, n_groups, 1], self.g.tensor(x).nb);
        let nb = [nb[0], nb[1], nb[1] * n, nb[1] * n * n_groups];
        let groups = self.g.view(x, ne, nb, 0);
        let groups = self.ok(groups, x);
        let sum = self.sum_heads(groups);
        self.scale(sum, 1.0 / n.max(1) as f32)
    }

    /// Concatenates each `n` consecutive columns of `x [d, T]`: `[d * n, T / n rounded up]`. Zeros follow the last
    /// column.
    pub fn stack_rows(&mut self, x: TensorId, n: usize) -> TensorId {
        let [d, n_rows, ..] = self.g.tensor(x).ne;
        let n_groups = n_rows.div_ceil(n.max(1));
        let missing = (n_groups * n).saturating_sub(n_rows);
        let mut x = self.dense(x);
        if missing > 0 {
            let nb = self.g.tensor(x).nb;
            let one = self.g.view(x, [d, 1, 1, 1], nb, 0);
            let one = self.ok(one, x);
            let zero = self.scale(one, 0.0);
            let zeros = self.g.repeat(zero, [d, missing, 1, 1]);
            let zeros = self.ok(zeros, x);
            x = self.concat(x, zeros, 1);
        }
        let y = self.g.reshape(x, [d * n, n_groups, 1, 1]);
        self.ok(y, x)
    }

    /// Rotates the pairs (2 i, 2 i + 1) of the first `dims` values of `x [d, n, T]` by the position of the column. With
    /// `halves`, the pairs are (i, i + dims / 2). If T is not the number of columns of the input, positions are
    /// indices.
    pub fn rope_time(&mut self, x: TensorId, base: f32, dims: usize, args: RopeTimeArgs) -> TensorId {
        let n = self.g.tensor(x).ne[2];
        let positions = if n == self.params.n_tokens {
            self.positions()
        } else {
            self.column_numbers(n)
        };
        let kind = if args.halves { RopeKind::Neox } else { RopeKind::Norm };
        let y = self.g.rope(x, positions, None, Rope::unscaled(kind, dims, base));
        self.ok(y, x)
    }

    /// Returns the input of the indices of `n` columns: i32 `[n]`.
    fn column_numbers(&mut self, n: usize) -> TensorId {
        let known = self.inputs.columns.iter().find(|&&id| self.g.tensor(id).ne[0] == n);
        if let Some(&known) = known {
            return known;
        }
        let columns = self.g.input(GgmlType::I32, [n, 1, 1, 1], "columns");
        self.inputs.columns.push(columns);
        columns
    }

    /// Returns the leading columns of `x [d, T / n]` whose `n` positions contain sound, enclosed in two learned
    /// columns `[d]`. The encoder also reads the silence after these positions. Without such columns, the result is
    /// the two weights.
    pub fn sounding(&mut self, x: TensorId, n: usize, first: Vector, last: Vector) -> TensorId {
        let x = self.dense(x);
        let ([d, n_rows, ..], nb) = (self.g.tensor(x).ne, self.g.tensor(x).nb);
        let [first, last] = [first, last].map(|w| {
            let w = self.leaf(w.0);
            self.reshaped(w, [d, 1, 1, 1])
        });
        let n_sounding = self.params.n_encoded.checked_div(n).unwrap_or(0).min(n_rows);
        if n_sounding == 0 {
            // The term `0 * x` keeps the inputs in the graph, because the caller fills them.
            let unread = self.scale(x, 0.0);
            let unread = self.mean_rows(unread);
            let first = self.add(first, unread);
            return self.concat(first, last, 1);
        }
        let y = self.g.view(x, [d, n_sounding, 1, 1], nb, 0);
        let y = self.ok(y, x);
        let y = self.concat(first, y, 1);
        self.concat(y, last, 1)
    }

    /// Returns the mean of the columns of `x [d, T]`: `[d, 1]`.
    pub fn mean_rows(&mut self, x: TensorId) -> TensorId {
        let n = self.g.tensor(x).ne[1];
        self.pool_rows(x, n)
    }

    /// Pads `x [d, T]` with columns of zeros to a multiple of `n` columns: `[d, T rounded up]`.
    pub fn padded_rows(&mut self, x: TensorId, n: usize) -> TensorId {
        let n_rows = self.g.tensor(x).ne[1];
        let missing = n_rows.checked_next_multiple_of(n).unwrap_or(n_rows) - n_rows;
        self.padded(x, 1, [0, missing])
    }

    /// Repeats the columns of `w [d, m]` for each `n` columns of `x [c, T]`: `[d, T / n * m]`.
    pub fn repeat_rows(&mut self, w: TensorId, x: TensorId, n: usize) -> TensorId {
        let ([d, m, ..], n_rows) = (self.g.tensor(w).ne, self.g.tensor(x).ne[1]);
        let n_groups = n_rows.checked_div(n).unwrap_or(0);
        let y = self.g.repeat(w, [d, m, n_groups, 1]);
        let y = self.ok(y, w);
        self.reshaped(y, [d, m * n_groups, 1, 1])
    }

    /// Concatenates `n` copies of `x [d, T]` and `y [e, T]`: `[n * d + e, T]`.
    pub fn prepend(&mut self, x: TensorId, n: usize, y: TensorId) -> TensorId {
        if n == 0 {
            return y;
        }
        let [d, t, ..] = self.g.tensor(x).ne;
        let copies = self.g.repeat(x, [d.saturating_mul(n), t, 1, 1]);
        let copies = self.ok(copies, x);
        self.concat(copies, y, 0)
    }
}
