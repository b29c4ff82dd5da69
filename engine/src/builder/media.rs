//! Media rows: the patches that encoders read, and the rows that language models read in place of embeddings.

use kernels::GgmlType;

use crate::graph::{Rope, RopeKind, TensorId};

use super::handles::Vector;
use super::inputs::{GridFactors, TableFilter, TableWeights};
use super::{BatchMedia, Builder};

/// Pairs of a head's values that rotate together.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum GridPairs {
    /// `(i, i + d / 2)`
    #[default]
    Halves,
    /// `(2 i, 2 i + 1)`
    Neighbors,
    /// `(i, i + d / 4)` in each half of a head.
    Quarters,
    /// `(2 i, 2 i + 1)`; rows and columns rotate every other pair.
    Alternating,
}

/// Arguments of [`Builder::rope_grid`].
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct RopeGridArgs {
    /// Pairs of a head's values that rotate together.
    pub pairs: GridPairs,
    /// The first half of the pairs rotates by the column, and the second half by the row.
    pub columns_first: bool,
    /// Rows and columns have every other frequency.
    pub spread: bool,
}

/// Arguments of [`Builder::resized`].
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ResizedArgs {
    /// The table is resized to the transposed grid of patches. Its rows keep their order.
    pub transposed: bool,
}

/// List element for -1, which means none.
pub const NONE: usize = usize::MAX;

impl Builder<'_> {
    /// Returns the input of patches, f32 `[width, n_patches]`.
    pub fn patches(&mut self, width: usize) -> TensorId {
        let n = self.params.grid.n_patches();
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

    /// Returns the input that contains the index of each patch in reading order, i32 `[T]`.
    pub(super) fn places(&mut self) -> TensorId {
        let n = self.params.n_tokens;
        let g = &mut *self.g;
        *self
            .inputs
            .places
            .get_or_insert_with(|| g.input(GgmlType::I32, [n, 1, 1, 1], "places"))
    }

    /// Returns the input of the index of each patch in reading order, i32 `[T]`.
    pub fn with_class(&mut self, x: TensorId, class: Vector) -> TensorId {
        let class = self.leaf(class.0);
        let d = self.g.tensor(x).ne[0];
        let class = self.g.reshape(class, [d, 1, 1, 1]);
        let class = self.ok(class, x);
        self.concat(class, x, 1)
    }

    /// Returns `x [d, T]` without the columns before the patches: `[d, n_patches]`.
    pub fn without_class(&mut self, x: TensorId) -> TensorId {
        let x = self.dense(x);
        let ([d, n, ..], nb) = (self.g.tensor(x).ne, self.g.tensor(x).nb);
        let n_patches = self.params.grid.n_patches().min(n);
        let y = self.g.view(x, [d, n_patches, 1, 1], nb, (n - n_patches) * nb[1]);
        self.ok(y, x)
    }

    /// Returns the row of `table [d, n]` for the column of each patch: `[d, T]`.
    pub fn at_columns(&mut self, table: TensorId) -> TensorId {
        self.along_axis(table, 1)
    }

    /// Returns the row of `table [d, n]` for the row of each patch: `[d, T]`.
    pub fn at_rows(&mut self, table: TensorId) -> TensorId {
        self.along_axis(table, 0)
    }

    /// Returns the row of `table [d, n]` for the position of each patch along an axis: `[d, T]`.
    fn along_axis(&mut self, table: TensorId, axis: usize) -> TensorId {
        let n_rows = self.g.tensor(table).ne[1];
        let max = &mut self.inputs.max_side;
        *max = Some(max.map_or(n_rows, |n| n.min(n_rows)));
        let axes = self.axes();
        let (n, nb) = (self.params.n_tokens, self.g.tensor(axes).nb);
        let places = self.g.view(axes, [n, 1, 1, 1], nb, axis * nb[1]);
        let places = self.ok(places, axes);
        let y = self.g.get_rows(table, places);
        self.ok(y, table)
    }

    /// Resizes the square `table [d, side * side]` to the patches of the image: `[d, T]` in the order of patches. The
    /// default is linear interpolation.
    pub fn resized(&mut self, table: Vector, filter: Option<TableFilter>, args: ResizedArgs) -> TensorId {
        let table = self.leaf(table.0);
        let [_, n, n_rows, _] = self.g.tensor(table).ne;
        let (side, grid) = ((n * n_rows).isqrt(), self.params.grid);
        let sides = if args.transposed {
            [grid.rows, grid.columns]
        } else {
            [grid.columns, grid.rows]
        };
        let rows = self.resized_grid(table, side, sides, filter.unwrap_or_default());
        let places = self.places();
        let y = self.g.get_rows(rows, places);
        self.ok(y, rows)
    }

    /// Resizes the square `table [d, side * side]` to columns and lines: `[d, columns * lines]` in reading order.
    pub(super) fn resized_grid(
        &mut self,
        table: TensorId,
        side: usize,
        [columns, lines]: [usize; 2],
        filter: TableFilter,
    ) -> TensorId {
        let d = self.g.tensor(table).ne[0];
        let across = self.table_weights(side, columns, filter, false);
        let down = self.table_weights(side, lines, filter, false);
        // [d, x, y] -> [x, d, y] -> [columns, d, y] -> [y, d, columns] -> [lines, d, columns] -> [d, columns, lines]
        let y = self.rearranged(table, [d, side, side], [1, 0, 2]);
        let y = self.by_column(across, y, [side, d * side]);
        let y = self.rearranged(y, [columns, d, side], [2, 1, 0]);
        let y = self.by_column(down, y, [side, d * columns]);
        let y = self.rearranged(y, [lines, d, columns], [2, 0, 1]);
        let rows = self.g.reshape(y, [d, columns * lines, 1, 1]);
        self.ok(rows, y)
    }

    /// Returns the input of weights that resize the rows of a table along an axis: `[from, to]`.
    pub(super) fn table_weights(&mut self, from: usize, to: usize, filter: TableFilter, descends: bool) -> TensorId {
        let is_known = |w: &&TableWeights| (w.from, w.to, w.filter, w.descends) == (from, to, filter, descends);
        if let Some(known) = self.inputs.resize.iter().find(is_known) {
            return known.weights;
        }
        let weights = self.g.input(GgmlType::F32, [from, to, 1, 1], "table_weights");
        self.inputs.resize.push(TableWeights {
            from,
            to,
            filter,
            descends,
            weights,
        });
        weights
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

    /// Returns the input of sines and cosines of the column of each patch, then of its row: `[d, T]`.
    pub fn grid_sinusoids(&mut self, d: usize) -> TensorId {
        let known = |id: &&TensorId| self.g.tensor(**id).ne[0] == d;
        if let Some(&known) = self.inputs.grid_sinusoids.iter().find(known) {
            return known;
        }
        let ne = [d, self.params.n_tokens, 1, 1];
        let values = self.g.input(GgmlType::F32, ne, "grid_sinusoids");
        self.inputs.grid_sinusoids.push(values);
        values
    }

    /// Rotates `x [d, n, T]` by the grid position of each patch. The row rotates half of the pairs, and the column the
    /// other half. The values of a head are reordered to pairs `(i, i + d / 2)`.
    pub fn rope_grid(&mut self, x: TensorId, base: f32, args: RopeGridArgs) -> TensorId {
        let [d, n_heads, n, _] = self.g.tensor(x).ne;
        let quarter = d / 4;
        let heads = [d, n_heads, n, 1];
        let x = match args.pairs {
            GridPairs::Halves => x,
            // [2, pair] -> [pair, 2]
            GridPairs::Neighbors => self.reordered(x, [2, d / 2, n_heads * n, 1], [1, 0, 2, 3], heads),
            // [half of a pair, axis, pair] -> [pair, axis, half of a pair]
            GridPairs::Alternating => self.reordered(x, [2, 2, quarter, n_heads * n], [2, 1, 0, 3], heads),
            // [pair, half of a pair, axis] -> [pair, axis, half of a pair]
            GridPairs::Quarters => self.reordered(x, [quarter, 2, 2, n_heads * n], [0, 2, 1, 3], heads),
        };
        let known = |known: &&GridFactors| known.base.to_bits() == base.to_bits() && known.spread == args.spread;
        let factors = match self.inputs.grid_factors.iter().find(known) {
            Some(known) => known.factors,
            None => {
                let factors = self.g.input(GgmlType::F32, [d / 2, 1, 1, 1], "grid_factors");
                let spread = args.spread;
                self.inputs.grid_factors.push(GridFactors { base, spread, factors });
                factors
            }
        };
        let rope = Rope {
            // The axes of a patch are its row, its column, and again its row.
            sections: if args.columns_first {
                [0, quarter, quarter, 0]
            } else {
                [quarter, quarter, 0, 0]
            },
            // The factors contain the frequencies.
            ..Rope::unscaled(RopeKind::Mrope, d, 1.0)
        };
        let axes = self.axes();
        let y = self.g.rope(x, axes, Some(factors), rope);
        self.ok(y, x)
    }

    /// Returns `x` of shape `ne`, its dimensions in a different order, as heads.
    pub(super) fn reordered(&mut self, x: TensorId, ne: [usize; 4], to: [usize; 4], heads: [usize; 4]) -> TensorId {
        let x = self.dense(x);
        let y = self.g.reshape(x, ne);
        let y = self.ok(y, x);
        let y = self.g.permute(y, to);
        let y = self.ok(y, x);
        let y = self.dense(y);
        let z = self.g.reshape(y, heads);
        self.ok(z, y)
    }

    /// Returns `x` and appends `y [n, rows]` to the rows of the result.
    pub fn beside(&mut self, x: TensorId, y: TensorId) -> TensorId {
        self.encoded.features.push(y);
        x
    }

    /// Returns `x`, and records it for [`kept`](Self::kept).
    pub fn keep(&mut self, x: TensorId) -> TensorId {
        self.encoded.kept.push(x);
        x
    }

    /// Returns the operand of call number `calls[i]` of [`keep`](Self::keep). The build fails if there is no such
    /// call.
    pub fn kept(&mut self, x: TensorId, calls: &[usize], i: usize) -> TensorId {
        match calls.get(i).and_then(|&call| self.encoded.kept.get(call)) {
            Some(&kept) => kept,
            None => self.beyond(x),
        }
    }

    /// Returns column `places[i]` of each `n` consecutive columns of `x [d, T]`, or their mean for [`NONE`]:
    /// `[d, T / n]`. The build fails for any other index.
    pub fn sampled(&mut self, x: TensorId, n: usize, places: &[usize], i: usize) -> TensorId {
        match places.get(i) {
            Some(&NONE) => self.pool_rows(x, n),
            Some(&place) if place < n => {
                let x = self.dense(x);
                let ([d, n_rows, ..], nb) = (self.g.tensor(x).ne, self.g.tensor(x).nb);
                let column = nb[1] * n;
                let n_groups = n_rows / n;
                let y = self.g.view(
                    x,
                    [d, n_groups, 1, 1],
                    [nb[0], column, column * n_groups, column * n_groups],
                    place * nb[1],
                );
                let y = self.ok(y, x);
                self.dense(y)
            }
            _ => self.beyond(x),
        }
    }

    /// Returns a view beyond `x`, which fails the build.
    fn beyond(&mut self, x: TensorId) -> TensorId {
        let (ne, nb) = (self.g.tensor(x).ne, self.g.tensor(x).nb);
        let y = self.g.view(x, [1, ne[1] + 1, 1, 1], nb, 0);
        self.ok(y, x)
    }

    /// Returns the rows of a square table `[d, s * s]` in the order of blocks of `n * n`.
    pub fn table_in_blocks(&mut self, table: Vector, n: usize) -> TensorId {
        let table = self.leaf(table.0);
        let [d, n_rows, ..] = self.g.tensor(table).ne;
        let side = n_rows.isqrt();
        let blocks = side.checked_div(n).unwrap_or(0);
        // Dimensions: columns and lines within a block, and blocks along both axes.
        // [column, block column, line, block line] -> [column, line, block column, block line]
        self.reordered(table, [d * n, blocks, n, blocks], [0, 2, 1, 3], [d, n_rows, 1, 1])
    }

    /// Appends the vector `w [d]` to each line of blocks of `n * n` patches: `[d, blocks]` to `[d, blocks + lines]`.
    pub fn with_newlines(&mut self, x: TensorId, w: Vector, n: usize) -> TensorId {
        let w = self.leaf(w.0);
        let x = self.dense(x);
        let [d, n_rows, ..] = self.g.tensor(x).ne;
        let lines = self.params.grid.rows.checked_div(n).unwrap_or(0);
        let columns = n_rows.checked_div(lines).unwrap_or(0);
        let joined = self.g.reshape(x, [d.saturating_mul(columns), lines, 1, 1]);
        let joined = self.ok(joined, x);
        let w = self.reshaped(w, [d, 1, 1, 1]);
        let newlines = self.g.repeat(w, [d, lines, 1, 1]);
        let newlines = self.ok(newlines, w);
        let y = self.concat(joined, newlines, 0);
        self.reshaped(y, [d, n_rows.saturating_add(lines), 1, 1])
    }

    /// Concatenates the columns of `x [d, n]` and `y [d, m]`: `[d, n + m]`.
    pub fn join_rows(&mut self, x: TensorId, y: TensorId) -> TensorId {
        self.concat(x, y, 1)
    }

    /// Returns `x [d, T]` without its first `n` columns: `[d, T - n]`.
    pub fn drop_rows(&mut self, x: TensorId, n: usize) -> TensorId {
        let x = self.dense(x);
        let ([d, n_rows, ..], nb) = (self.g.tensor(x).ne, self.g.tensor(x).nb);
        let n = n.min(n_rows);
        let y = self.g.view(x, [d, n_rows - n, 1, 1], nb, n * nb[1]);
        self.ok(y, x)
    }

    /// Returns `y [d, T]` without its first `n` columns, where `n` is the number of columns of `x [c, n]`:
    /// `[d, T - n]`.
    pub fn after_prefix(&mut self, y: TensorId, x: TensorId) -> TensorId {
        let n = self.g.tensor(x).ne[1];
        self.drop_rows(y, n)
    }

    /// Returns the table with `n` columns among `a` and `b`, for `x [c, n]`: `[d, n]`. The build fails if there is
    /// none.
    pub fn matching_rows(&mut self, x: TensorId, a: Vector, b: Vector) -> TensorId {
        let n = self.g.tensor(x).ne[1];
        let [a, b] = [a, b].map(|table| self.leaf(table.0));
        match [a, b].into_iter().find(|&table| self.g.tensor(table).ne[1] == n) {
            Some(table) => table,
            None => self.beyond(x),
        }
    }

    /// Appends the recorded features to the rows of the result.
    pub(super) fn with_features(&mut self, result: TensorId) -> TensorId {
        let features = std::mem::take(&mut self.encoded.features);
        features.into_iter().fold(result, |rows, y| self.concat(rows, y, 0))
    }

    /// Adds the features with the number `part` to the columns of `x [n_embd, T]` that belong to media. Without `part`,
    /// the number is one more than in the previous call. Part 0 is the embedding of a row.
    pub fn deepstack(&mut self, x: TensorId, part: Option<f32>) -> TensorId {
        if self.params.media == BatchMedia::None {
            return x;
        }
        let next = self
            .inputs
            .features
            .last()
            .map_or(1, |&(part, _)| part.saturating_add(1));
        let part = part.map_or(next, |part| part as usize);
        let ne = self.g.tensor(x).ne;
        let features = self.g.input(GgmlType::F32, ne, "features");
        self.inputs.features.push((part, features));
        self.add(x, features)
    }
}
