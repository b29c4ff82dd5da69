//! Rows of media: the patches that encoders read, and the rows that language models read in place of embeddings.

use kernels::GgmlType;

use crate::graph::{Rope, RopeKind, TensorId};

use super::handles::Vector;
use super::inputs::{GridFactors, GridResize};
use super::{BatchMedia, Builder};

impl Builder<'_> {
    /// Returns the input of patches, f32 `[width, T]`.
    pub fn patches(&mut self, width: usize) -> TensorId {
        let n = self.params.n_tokens;
        let g = &mut *self.g;
        *self
            .inputs
            .patches
            .get_or_insert_with(|| g.input(GgmlType::F32, [width, n, 1, 1], "patches"))
    }

    /// Replaces the columns of `x [n_embd, T]` that belong to media by their rows.
    pub fn with_media(&mut self, x: TensorId) -> TensorId {
        if self.params.media == BatchMedia::None {
            return x;
        }
        let [n_embd, n, ..] = self.g.tensor(x).ne;
        let g = &mut *self.g;
        let (rows, keep) = *self.inputs.media.get_or_insert_with(|| {
            let rows = g.input(GgmlType::F32, [n_embd, n, 1, 1], "media");
            (rows, g.input(GgmlType::F32, [1, n, 1, 1], "is_token"))
        });
        let kept = self.mul(x, keep);
        self.add(kept, rows)
    }

    /// Groups `n` consecutive columns of `x [d, T]`: `[d, n, T / n]`.
    pub fn group_rows(&mut self, x: TensorId, n: usize) -> TensorId {
        let [d, n_rows, ..] = self.g.tensor(x).ne;
        let dense = self.dense(x);
        let y = self.g.reshape(dense, [d, n, n_rows.checked_div(n).unwrap_or(0), 1]);
        self.ok(y, x)
    }

    /// Returns the transpose of a weight `[n, m]`: `[m, n]`.
    pub fn transposed(&mut self, w: Vector) -> TensorId {
        let w = self.leaf(w.0);
        let y = self.g.permute(w, [1, 0, 2, 3]);
        let y = self.ok(y, w);
        self.dense(y)
    }

    /// Returns the input of the place of each patch in reading order, i32 `[T]`.
    pub(super) fn places(&mut self) -> TensorId {
        let n = self.params.n_tokens;
        let g = &mut *self.g;
        *self
            .inputs
            .places
            .get_or_insert_with(|| g.input(GgmlType::I32, [n, 1, 1, 1], "places"))
    }

    /// Resizes the square `table [d, side * side]` to the patches of the image: `[d, T]` in the order of patches. The
    /// interpolation is linear, and the corners of both grids coincide.
    pub fn resized(&mut self, table: Vector) -> TensorId {
        let table = self.leaf(table.0);
        let [d, n, ..] = self.g.tensor(table).ne;
        let side = n.isqrt();
        let GridResize { across, down, .. } = self.grid_resize(side);
        let grid = self.params.grid;
        // [d, x, y] -> [x, d, y] -> [columns, d, y] -> [y, d, columns] -> [rows, d, columns] -> [d, columns, rows]
        let y = self.rearranged(table, [d, side, side], [1, 0, 2]);
        let y = self.by_column(across, y, [side, d * side]);
        let y = self.rearranged(y, [grid.columns, d, side], [2, 1, 0]);
        let y = self.by_column(down, y, [side, d * grid.columns]);
        let y = self.rearranged(y, [grid.rows, d, grid.columns], [2, 0, 1]);
        let rows = self.g.reshape(y, [d, grid.n_patches(), 1, 1]);
        let (rows, places) = (self.ok(rows, y), self.places());
        let y = self.g.get_rows(rows, places);
        self.ok(y, rows)
    }

    fn grid_resize(&mut self, side: usize) -> GridResize {
        if let Some(known) = self.inputs.resize.iter().find(|resize| resize.side == side) {
            return *known;
        }
        let grid = self.params.grid;
        let resize = GridResize {
            side,
            across: self.g.input(GgmlType::F32, [side, grid.columns, 1, 1], "resize_across"),
            down: self.g.input(GgmlType::F32, [side, grid.rows, 1, 1], "resize_down"),
        };
        self.inputs.resize.push(resize);
        resize
    }

    /// Returns `x` as a contiguous tensor of shape `ne` whose dimension `i` became dimension `to[i]`.
    fn rearranged(&mut self, x: TensorId, ne: [usize; 3], to: [usize; 3]) -> TensorId {
        let apart = self.g.reshape(x, [ne[0], ne[1], ne[2], 1]);
        let apart = self.ok(apart, x);
        let y = self.g.permute(apart, [to[0], to[1], to[2], 3]);
        let y = self.ok(y, x);
        self.dense(y)
    }

    /// Multiplies `x`, as columns of shape `ne`, by the rows of `weights`.
    fn by_column(&mut self, weights: TensorId, x: TensorId, ne: [usize; 2]) -> TensorId {
        let columns = self.g.reshape(x, [ne[0], ne[1], 1, 1]);
        let columns = self.ok(columns, x);
        self.matmul(weights, columns)
    }

    /// Rotates `x [d, n, T]` by the place of each patch: the pairs `(i, i + d / 2)` with `i < d / 4` by the row, and
    /// the other pairs by the column, with equal frequencies.
    pub fn rope_grid(&mut self, x: TensorId, base: f32) -> TensorId {
        let d = self.g.tensor(x).ne[0];
        let quarter = d / 4;
        let known = |known: &&GridFactors| known.base.to_bits() == base.to_bits();
        let factors = match self.inputs.grid_factors.iter().find(known) {
            Some(known) => known.factors,
            None => {
                let factors = self.g.input(GgmlType::F32, [d / 2, 1, 1, 1], "grid_factors");
                self.inputs.grid_factors.push(GridFactors { base, factors });
                factors
            }
        };
        let rope = Rope {
            kind: RopeKind::Mrope,
            sections: [quarter, quarter, 0, 0],
            n_dims: d,
            // The factors contain the frequencies.
            freq_base: 1.0,
            freq_scale: 1.0,
            ext_factor: 0.0,
            attn_factor: 1.0,
            beta_fast: 32.0,
            beta_slow: 1.0,
            n_ctx_orig: 0,
            every: 1,
            inverse: false,
        };
        let axes = self.axes();
        let y = self.g.rope(x, axes, Some(factors), rope);
        self.ok(y, x)
    }

    /// Returns `x` and appends `y [n, rows]` to the rows of the result.
    pub fn beside(&mut self, x: TensorId, y: TensorId) -> TensorId {
        self.features.push(y);
        x
    }

    /// Appends the recorded features to the rows of the result.
    pub(super) fn with_features(&mut self, result: TensorId) -> TensorId {
        let features = std::mem::take(&mut self.features);
        features.into_iter().fold(result, |rows, y| self.concat(rows, y, 0))
    }

    /// Adds the features of the layer to the columns of `x [n_embd, T]` that belong to media.
    pub fn deepstack(&mut self, x: TensorId) -> TensorId {
        if self.params.media == BatchMedia::None {
            return x;
        }
        let ne = self.g.tensor(x).ne;
        let features = self.g.input(GgmlType::F32, ne, "features");
        self.inputs.features.push(features);
        self.add(x, features)
    }
}
