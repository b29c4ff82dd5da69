//! Attention over neighboring columns without a cache, with positions relative to the query.

use kernels::GgmlType;

use crate::graph::TensorId;

use super::Builder;
use super::convolve::F32;
use super::handles::Vector;
use super::inputs::{Distances, Sinusoids};

/// Arguments of [`Builder::local_attention`].
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub struct LocalAttentionArgs {
    /// Factor of the scores; `1 / sqrt(d)` by default.
    pub scale: Option<f32>,
    /// Bound of the scores, which `c * tanh(x / c)` approaches.
    pub softcap: Option<f32>,
}

/// Scores of attention between blocks of columns.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct BlockScores {
    /// Columns that are added to the keys, ordered from the largest distance down: `[d, size + keys - 1]`.
    pub relative: Option<TensorId>,
    /// Factor of the scores.
    pub scale: f32,
    /// Attention is causal. The last columns of a block of keys are the columns of the queries.
    pub causal: bool,
}

impl BlockScores {
    /// Scores with the factor `scale`.
    pub(super) fn scaled(scale: f32) -> BlockScores {
        BlockScores {
            relative: None,
            scale,
            causal: false,
        }
    }
}

/// Addend of the scores of columns outside of the input.
const MASKED: f32 = -1e9;

/// Maximum number of columns in a block. No memory suffices for the scores of larger blocks.
const MAX_BLOCK: usize = 1 << 20;

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
        let mask = self.neighbors_outside(keys, around);
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
    fn neighbors_outside(&mut self, x: TensorId, around: [usize; 2]) -> TensorId {
        let t = self.g.tensor(x).ne[1];
        let w = around[0] + 1 + around[1];
        let outside = self.columns_outside(x, around);
        self.unfolded(outside, [w, 1, t, 1], [F32, F32, F32, F32 * t], 0)
    }

    /// Returns 0 for each column of `x [d, T]`, and [`MASKED`] for columns around them: `[1, T + before + after]`.
    fn columns_outside(&mut self, x: TensorId, around: [usize; 2]) -> TensorId {
        let one = self.slice(x, 0, 1);
        let one = self.g.scale(one, 0.0, 1.0);
        let inside = self.ok(one, x);
        let inside = self.padded(inside, 1, around);
        let mask = self.g.scale(inside, -MASKED, MASKED);
        self.ok(mask, inside)
    }

    /// Attends from each block of `size` columns to the block of `keys` columns with the same index.
    ///
    /// Shapes: q `[d, n, T]`, k `[d, n, U]`, v `[dv, n, U]` -> `[dv * n, T]`. The columns of
    /// `relative [d, size + keys - 1]`, ordered by decreasing distance within a block, are added to the keys of all
    /// heads.
    pub fn block_attention(
        &mut self,
        q: TensorId,
        k: TensorId,
        v: TensorId,
        size: usize,
        keys: usize,
        relative: Option<TensorId>,
    ) -> TensorId {
        let scale = 1.0 / (self.g.tensor(q).ne[0] as f32).sqrt();
        let scores = BlockScores {
            relative,
            ..BlockScores::scaled(scale)
        };
        self.attention_of_blocks(q, k, v, [size, keys], scores)
    }

    /// Attends like [`block_attention`](Self::block_attention), with other scores. The number of heads of q is a
    /// multiple of the number of heads of k and v.
    pub(super) fn attention_of_blocks(
        &mut self,
        q: TensorId,
        k: TensorId,
        v: TensorId,
        [size, keys]: [usize; 2],
        args: BlockScores,
    ) -> TensorId {
        let ([d, n, t, _], [dv, _, u, _]) = (self.g.tensor(q).ne, self.g.tensor(v).ne);
        let [size, keys] = [size, keys].map(|n| n.clamp(1, MAX_BLOCK));
        let n_blocks = t.div_ceil(size);
        let q = self.in_blocks(q, [size, n_blocks], [0, 2, 1, 3]);
        let mask = self.merge(k);
        let k = self.in_blocks(k, [keys, n_blocks], [0, 2, 1, 3]);
        let v = self.in_blocks(v, [keys, n_blocks], [1, 2, 0, 3]);
        let mut scores = self.matmul(k, q);
        if let Some(relative) = args.relative {
            // The index of the column for a query and a key is `size - 1 + key - query`.
            let w = size + keys - 1;
            let queries = self.reshaped(q, [d, size * n * n_blocks, 1, 1]);
            let relative = self.dense(relative);
            let all = self.matmul(relative, queries);
            let (row, head) = ((w - 1) * F32, size * w * F32);
            let first = (size - 1) * F32;
            let ne = [keys, size, n, n_blocks];
            let of_keys = self.unfolded(all, ne, [F32, row, head, head * n], first);
            scores = self.add(scores, of_keys);
        }
        let mut scores = self.scale(scores, args.scale);
        if u < keys * n_blocks {
            let outside = self.columns_outside(mask, [0, keys * n_blocks - u]);
            let outside = self.reshaped(outside, [keys, 1, 1, n_blocks]);
            scores = self.add(scores, outside);
        }
        if args.causal {
            let later = self.later_columns(mask, [size, keys]);
            scores = self.add(scores, later);
        }
        let weights = self.softmax(scores);
        let y = self.matmul(v, weights);
        let y = self.reordered(
            y,
            [dv, size, n, n_blocks],
            [0, 2, 1, 3],
            [dv * n, size * n_blocks, 1, 1],
        );
        let nb = self.g.tensor(y).nb;
        let all = self.g.view(y, [dv * n, t, 1, 1], nb, 0);
        let all = self.ok(all, y);
        self.dense(all)
    }

    /// Attends from each column to all: q `[d, n, T]`, k `[d, n, U]`, v `[dv, n, U]` -> `[dv * n, T]`. Unlike
    /// [`attention`](Self::attention), it accepts any number of columns. The heads of q may share one head of k and v.
    pub fn full_attention(&mut self, q: TensorId, k: TensorId, v: TensorId) -> TensorId {
        let [n_queries, n_keys] = [q, k].map(|x| self.g.tensor(x).ne[2]);
        self.block_attention(q, k, v, n_queries, n_keys, None)
    }

    /// Returns the causal mask `[keys, size]`: 0 for keys up to the column of a query, and [`MASKED`] for later keys.
    /// The last columns of the keys are the columns of the `size` queries.
    fn later_columns(&mut self, x: TensorId, [size, keys]: [usize; 2]) -> TensorId {
        let nb = self.g.tensor(x).nb;
        let one = self.g.view(x, [1; 4], nb, 0);
        let one = self.ok(one, x);
        let one = self.g.scale(one, 0.0, 1.0);
        let one = self.ok(one, x);
        let inside = self.g.repeat(one, [1, keys, 1, 1]);
        let inside = self.ok(inside, one);
        let w = keys + size - 1;
        let line = self.columns_outside(inside, [0, size - 1]);
        let line = self.reshaped(line, [w, 1, 1, 1]);
        let all = self.g.repeat(line, [w, size, 1, 1]);
        let all = self.ok(all, line);
        // The column of a query and a key grows with the key, and falls with the query.
        let row = (w - 1) * F32;
        self.unfolded(
            all,
            [keys, size, 1, 1],
            [F32, row, row * size, row * size],
            (size - 1) * F32,
        )
    }

    /// Attends among the first `n` columns, for `x [c, n]`, and causally from the later columns.
    ///
    /// Shapes: q `[d, h, T]`, k `[d, g, T]`, v `[dv, g, T]` -> `[dv * h, T]`, where `h` is a multiple of `g`.
    pub fn prefix_attention(&mut self, q: TensorId, k: TensorId, v: TensorId, x: TensorId) -> TensorId {
        let [d, _, t, _] = self.g.tensor(q).ne;
        let n = self.g.tensor(x).ne[1].min(t);
        let scores = BlockScores::scaled(1.0 / (d as f32).sqrt());
        let [q, k, v] = [q, k, v].map(|x| self.dense(x));
        let [first_q, first_k, first_v] = [q, k, v].map(|x| self.columns_of_heads(x, 0, n));
        let y = self.attention_of_blocks(first_q, first_k, first_v, [n; 2], scores);
        if n == t {
            return y;
        }
        let last_q = self.columns_of_heads(q, n, t);
        let scores = BlockScores { causal: true, ..scores };
        let last = self.attention_of_blocks(last_q, k, v, [t - n, t], scores);
        self.concat(y, last, 1)
    }

    /// Returns the columns from `first` up to `end` of a contiguous `x [d, n, T]`.
    fn columns_of_heads(&mut self, x: TensorId, first: usize, end: usize) -> TensorId {
        let ([d, n, ..], nb) = (self.g.tensor(x).ne, self.g.tensor(x).nb);
        let y = self.g.view(x, [d, n, end - first, 1], nb, first * nb[2]);
        self.ok(y, x)
    }

    /// Returns `x [d, n, T]` in blocks of columns, padded with zeros, with the dimensions `[d, n, size, n_blocks]`
    /// permuted.
    fn in_blocks(&mut self, x: TensorId, [size, n_blocks]: [usize; 2], to: [usize; 4]) -> TensorId {
        let [d, n, t, _] = self.g.tensor(x).ne;
        let columns = self.merge(x);
        let columns = self.padded(columns, 1, [0, (size * n_blocks).saturating_sub(t)]);
        let ne = [d, n, size, n_blocks];
        let mut moved = ne;
        to.iter().zip(ne).for_each(|(&i, n)| moved[i] = n);
        self.reordered(columns, ne, to, moved)
    }

    /// Returns the rows of `table [d, n]` for the distances from `before` down to `-after`: `[d, before + 1 + after]`.
    /// The middle row is for distance 0.
    pub fn at_distances(&mut self, table: TensorId, before: usize, after: usize) -> TensorId {
        let n = self.g.tensor(table).ne[1];
        let middle = n / 2;
        if before > middle || after > middle || n.is_multiple_of(2) {
            // A view beyond the table fails the build.
            let nb = self.g.tensor(table).nb;
            let y = self.g.view(table, [1, n + 1, 1, 1], nb, 0);
            return self.ok(y, table);
        }
        let known = |d: &&Distances| (d.middle, d.before, d.after) == (middle, before, after);
        let rows = match self.inputs.distances.iter().find(known) {
            Some(known) => known.rows,
            None => {
                let rows = self.g.input(GgmlType::I32, [before + 1 + after, 1, 1, 1], "distances");
                self.inputs.distances.push(Distances {
                    middle,
                    before,
                    after,
                    rows,
                });
                rows
            }
        };
        let y = self.g.get_rows(table, rows);
        self.ok(y, table)
    }

    /// Returns the input of sinusoids of the distances from `before` down to `-after`: `[d, before + 1 + after]`.
    pub fn sinusoids(&mut self, d: usize, before: usize, after: usize) -> TensorId {
        self.sines(d, [before, after], false)
    }

    /// Returns the input of sinusoids of the distances between the columns of `x [c, T]`, from T - 1 down to 1 - T.
    /// Sines and cosines alternate: `[d, 2 T - 1]`.
    pub fn sinusoids_of(&mut self, x: TensorId, d: usize) -> TensorId {
        let last = self.g.tensor(x).ne[1].saturating_sub(1);
        self.sines(d, [last, last], true)
    }

    fn sines(&mut self, d: usize, [before, after]: [usize; 2], in_turn: bool) -> TensorId {
        let known = |s: &&Sinusoids| (s.before, s.after, s.d, s.in_turn) == (before, after, d, in_turn);
        if let Some(known) = self.inputs.sinusoids.iter().find(known) {
            return known.rows;
        }
        let n = before.saturating_add(after).saturating_add(1);
        let rows = self.g.input(GgmlType::F32, [d, n, 1, 1], "sinusoids");
        self.inputs.sinusoids.push(Sinusoids {
            d,
            in_turn,
            before,
            after,
            rows,
        });
        rows
    }

    /// Attends from each column to all: q and k `[d, n, T]`, v `[dv, n, T]` -> `[dv * n, T]`. Scores are products with
    /// the keys plus products with the columns of `relative [d * n, 2 T - 1]` (Transformer-XL). The columns are ordered
    /// by distance, from T - 1 down. Each product has its own bias `[d, n]`, which is added to the queries.
    pub fn distance_attention(
        &mut self,
        q: TensorId,
        k: TensorId,
        v: TensorId,
        relative: TensorId,
        content_bias: Vector,
        distance_bias: Vector,
    ) -> TensorId {
        let ([d, n, t, _], dv) = (self.g.tensor(q).ne, self.g.tensor(v).ne[0]);
        let w = self.g.tensor(relative).ne[1];
        let [of_keys, of_distances] = [content_bias, distance_bias].map(|bias| {
            let bias = self.leaf(bias.0);
            let bias = self.reshaped(bias, [d, n, 1, 1]);
            let q = self.add(q, bias);
            self.in_blocks(q, [t, 1], [0, 2, 1, 3])
        });
        let k = self.in_blocks(k, [t, 1], [0, 2, 1, 3]);
        let v = self.in_blocks(v, [t, 1], [1, 2, 0, 3]);
        let scores = self.matmul(k, of_keys);
        let relative = self.dense(relative);
        let column = d * n * F32;
        let relative = self.unfolded(relative, [d, w, n, 1], [F32, column, d * F32, column * w], 0);
        let all = self.matmul(relative, of_distances);
        // The column of a query and a key grows with the key, and falls with the query.
        let (row, head) = (w.saturating_sub(1) * F32, t * w * F32);
        let first = t.saturating_sub(1) * F32;
        let by_key = self.unfolded(all, [t, t, n, 1], [F32, row, head, head * n], first);
        let scores = self.add(scores, by_key);
        let scores = self.scale(scores, 1.0 / (d as f32).sqrt());
        let weights = self.softmax(scores);
        let y = self.matmul(v, weights);
        self.reordered(y, [dv, t, n, 1], [0, 2, 1, 3], [dv * n, t, 1, 1])
    }
}
