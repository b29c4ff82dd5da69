//! Operations over the grid of patches: windows, attention with relative positions along both axes, convolutions, and
//! resized tables. All are composed of views, copies, and matmuls.

use crate::graph::TensorId;

use super::convolve::{F32, GridConvArgs, Steps};
use super::handles::{Linear, Vector};
use super::inputs::TableFilter;
use super::local_attention::BlockScores;
use super::{AttentionArgs, Builder, PatchGrid};

/// Largest side of a window in patches. No memory suffices for the scores of larger windows.
const MAX_SIDE: usize = 1 << 10;

impl Builder<'_> {
    /// Returns the columns and lines of the grid with `n` cells. The grid of patches is halved along both axes until
    /// its size is `n`.
    fn sides_of(&self, n: usize) -> [usize; 2] {
        let PatchGrid { columns, rows } = self.params.grid;
        let mut sides = [columns, rows];
        while sides[0] * sides[1] > n && sides != [1; 2] {
            sides = sides.map(|n| n.div_ceil(2));
        }
        if sides[0] * sides[1] == n { sides } else { [n, 1] }
    }

    /// Returns the columns of `x [d, T]` in windows of `n * n` patches, in reading order: `[d, n * n * windows]`.
    /// Windows at the right and at the bottom are padded with zeros.
    pub fn in_windows(&mut self, x: TensorId, n: usize) -> TensorId {
        let [d, t, ..] = self.g.tensor(x).ne;
        let n = n.clamp(1, MAX_SIDE);
        let [columns, lines] = self.sides_of(t);
        let [across, down] = [columns, lines].map(|side| side.div_ceil(n));
        let x = self.dense(x);
        let x = self.reshaped(x, [d, columns, lines, 1]);
        let x = self.padded(x, 1, [0, across * n - columns]);
        let x = self.padded(x, 2, [0, down * n - lines]);
        // [column, window column, line, window line] -> [column, line, window column, window line]
        let all = [d, n * n * across * down, 1, 1];
        self.reordered(x, [d * n, across, n, down], [0, 2, 1, 3], all)
    }

    /// Returns the columns of `x`, the result of [`in_windows`](Self::in_windows), in reading order: `[d, T]`.
    pub fn from_windows(&mut self, x: TensorId, n: usize) -> TensorId {
        let d = self.g.tensor(x).ne[0];
        let n = n.clamp(1, MAX_SIDE);
        let PatchGrid { columns, rows } = self.params.grid;
        let [across, down] = [columns, rows].map(|side| side.div_ceil(n));
        let all = [d, across * n, down * n, 1];
        let x = self.reordered(x, [d * n, n, across, down], [0, 2, 1, 3], all);
        let nb = self.g.tensor(x).nb;
        let kept = self.unfolded(x, [d, columns, rows, 1], nb, 0);
        self.reshaped(kept, [d, columns * rows, 1, 1])
    }

    /// Reorders the columns of `x [d, T]` or `[d, h, T]`: blocks of `n * n` patches from line by line to column by
    /// column.
    pub fn by_columns(&mut self, x: TensorId, n: usize) -> TensorId {
        let [across, down] = self.blocks_of(n);
        self.with_blocks(x, [across, down])
    }

    /// Reverses [`by_columns`](Self::by_columns): reorders blocks from column by column to line by line.
    pub fn by_lines(&mut self, x: TensorId, n: usize) -> TensorId {
        let [across, down] = self.blocks_of(n);
        self.with_blocks(x, [down, across])
    }

    /// Returns the columns and lines of blocks of `n * n` patches.
    fn blocks_of(&self, n: usize) -> [usize; 2] {
        let PatchGrid { columns, rows } = self.params.grid;
        [columns, rows].map(|side| side.checked_div(n).unwrap_or(0))
    }

    /// Transposes the order of the blocks in `x`, which consists of `outer` lines of `inner` blocks.
    fn with_blocks(&mut self, x: TensorId, [inner, outer]: [usize; 2]) -> TensorId {
        let ne = self.g.tensor(x).ne;
        let n_values = ne.iter().fold(1usize, |n, &side| n.saturating_mul(side));
        let block = n_values.checked_div(inner * outer).unwrap_or(0);
        self.reordered(x, [block, inner, outer, 1], [0, 2, 1, 3], ne)
    }

    /// Attends within windows of `side * side` patches, or among all patches without `side`. Shapes: q and k `[d, n,
    /// T]`, v `[dv, n, T]` -> `[dv * n, T]`. Scores include the products of the query with a row of `lines` and a row
    /// of `columns`, `[d, L]`. These rows are learned for each distance along both axes. The tables are resized to the
    /// distances in a window.
    ///
    /// The products are appended to the queries, and one-hot vectors of line and column to the keys. The dot product
    /// of query and key then includes both terms (Li et al., arXiv 2112.01526).
    pub fn grid_attention(
        &mut self,
        q: TensorId,
        k: TensorId,
        v: TensorId,
        lines: Vector,
        columns: Vector,
        side: Option<usize>,
    ) -> TensorId {
        let [d, n, t, _] = self.g.tensor(q).ne;
        let [across, down] = match side {
            Some(side) => [side.clamp(1, MAX_SIDE); 2],
            None => self.sides_of(t),
        };
        let n_windows = t.checked_div(across * down).unwrap_or(0).max(1);
        let by_line = [across, down, n_windows];
        let by_column = [1, across, down * n_windows];
        let of_lines = self.by_distance(q, lines, by_line);
        let of_columns = self.by_distance(q, columns, by_column);
        let q = self.scale(q, 1.0 / (d as f32).sqrt());
        let q = self.concat(q, of_lines, 0);
        let q = self.concat(q, of_columns, 0);
        let at_line = self.places_of([n, t], by_line);
        let at_column = self.places_of([n, t], by_column);
        let k = self.concat(k, at_line, 0);
        let k = self.concat(k, at_column, 0);
        if side.is_some() {
            let area = across * down;
            return self.attention_of_blocks(q, k, v, [area, area], BlockScores::scaled(1.0));
        }
        let args = AttentionArgs {
            scale: Some(1.0),
            causal: false,
            ..AttentionArgs::default()
        };
        self.attention(q, k, Some(v), args)
    }

    /// Multiplies each query of `q [d, n, T]` by the column of a table for its distance to each key along an axis.
    /// Returns `[side, n, T]`. Columns are ordered `[inner, side, outer]`: `inner` columns for each of `side`
    /// positions, repeated `outer` times.
    fn by_distance(&mut self, q: TensorId, table: Vector, [inner, side, outer]: [usize; 3]) -> TensorId {
        let [d, n, t, _] = self.g.tensor(q).ne;
        let table = self.leaf(table.0);
        let (n_rows, n_distances) = (self.g.tensor(table).ne[1], 2 * side - 1);
        // Distances (query minus key) are in descending order, so the index grows with the key. Row 0 of the table is
        // for the smallest distance.
        let weights = self.table_weights(n_rows, n_distances, TableFilter::Bilinear, true);
        let by_value = self.g.permute(table, [1, 0, 2, 3]);
        let by_value = self.ok(by_value, table);
        let by_value = self.dense(by_value);
        let distances = self.matmul(by_value, weights);
        let queries = self.dense(q);
        let queries = self.reshaped(queries, [d, n * t, 1, 1]);
        let all = self.matmul(distances, queries);
        // The index of a product is `side - 1 + key - query`.
        let (row, inner) = (n_distances * F32, n * inner);
        let near = self.unfolded(
            all,
            [side, inner, side, outer],
            [F32, row, inner * row - F32, inner * side * row],
            (side - 1) * F32,
        );
        self.reshaped(near, [side, n, t, 1])
    }

    /// Returns one-hot vectors of the position of each column along an axis: `[side, n, T]`.
    fn places_of(&mut self, [n, t]: [usize; 2], [inner, side, outer]: [usize; 3]) -> TensorId {
        let unit = self.table_weights(side, side, TableFilter::Bilinear, false);
        let unit = self.reshaped(unit, [side, 1, side, 1]);
        let all = self.g.repeat(unit, [side, n * inner, side, outer]);
        let all = self.ok(all, unit);
        self.reshaped(all, [side, n, t, 1])
    }

    /// Applies a convolution of 3 x 3 taps over the lines of `x [c, n]`, between zeros. Returns `[m, n]`, or `[m, n /
    /// 4]` with stride 2, rounded up along both axes. The weights are `w [9 * c -> m]`, the taps of a line first.
    pub fn conv_grid(&mut self, x: TensorId, w: Linear, stride: usize, args: GridConvArgs) -> TensorId {
        let x = self.in_lines(x);
        let y = self.conv_by(
            x,
            w,
            Steps {
                args,
                ..Steps::of(stride)
            },
            false,
        );
        self.merge_lines(y)
    }

    /// Applies a depthwise convolution like [`conv_grid`](Self::conv_grid) to `x [c, n]`. The weights are
    /// `w [taps * taps, c]`.
    pub fn depthwise_grid(&mut self, x: TensorId, w: Vector, stride: usize, args: GridConvArgs) -> TensorId {
        let x = self.in_lines(x);
        let y = self.depthwise_by(
            x,
            w,
            Steps {
                args,
                ..Steps::of(stride)
            },
        );
        self.merge_lines(y)
    }

    /// Resizes a square table of positions to the lines of `x [c, n]`: `table [d, first + side * side]` to `[d, n]`.
    /// The first `first` rows are left out.
    pub fn resized_to(&mut self, table: TensorId, x: TensorId, first: usize, filter: Option<TableFilter>) -> TensorId {
        let table = self.dense(table);
        let ([d, n_rows, ..], nb) = (self.g.tensor(table).ne, self.g.tensor(table).nb);
        let first = first.min(n_rows);
        let side = (n_rows - first).isqrt();
        let sides = self.sides_of(self.g.tensor(x).ne[1]);
        let rows = self.g.view(table, [d, side * side, 1, 1], nb, first * nb[1]);
        let rows = self.ok(rows, table);
        let rows = self.dense(rows);
        self.resized_grid(rows, side, sides, filter.unwrap_or_default())
    }

    /// Splits the columns of `x [c, n]` into lines: `[c, columns, lines]`.
    fn in_lines(&mut self, x: TensorId) -> TensorId {
        let [c, n, ..] = self.g.tensor(x).ne;
        let [columns, lines] = self.sides_of(n);
        let x = self.dense(x);
        self.reshaped(x, [c, columns, lines, 1])
    }

    /// Concatenates the lines of `x [c, columns, lines]`: `[c, columns * lines]`.
    fn merge_lines(&mut self, x: TensorId) -> TensorId {
        let [c, columns, lines, _] = self.g.tensor(x).ne;
        self.reshaped(x, [c, columns * lines, 1, 1])
    }
}
