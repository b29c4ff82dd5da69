//! [`Builder`]: inputs, norms, linear layers, and views of named values.

use std::fmt;
use std::ops::Range;

use kernels::GgmlType;

use crate::graph::{BufferSlice, Flags, Graph, Layout, Name, ROPE_AXES, ShapeError, TensorId, Unary};

use super::PatchGrid;
use super::adaptation::Adaptation;
use super::caches::{Cache, CacheView, MemorySpecs};
use super::error::{BuildError, MAX_ROUNDS};
use super::handles::{Embed, Linear, Norm, PerHead, Placeholder, Vector, WeightId};
use super::inputs::{EncodedValues, Inputs};
use super::params::{BuildParams, GraphPart};
use super::prune::Pruning;

/// Weight as seen by a graph.
#[derive(Clone, Debug)]
pub struct WeightLeaf {
    /// Element type.
    pub ty: GgmlType,
    /// Shape, innermost dimension first.
    pub ne: [usize; 4],
    /// Location of the data; of the first part if the matrix is split by rows.
    pub home: BufferSlice,
    /// Row layout.
    pub layout: Layout,
    /// GGUF name of the declared field, without layer.
    pub name: Name,
    /// Parts in row order if the matrix is split over several devices; empty otherwise.
    pub parts: Vec<WeightPart>,
    /// Value of a bound, which graphs contain as a constant.
    pub value: Option<f32>,
}

/// Consecutive rows of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeightPart {
    /// Number of rows in the range.
    pub n_rows: usize,
    /// Buffer and offset of the data.
    pub home: BufferSlice,
    /// Row layout.
    pub layout: Layout,
}

const IS_WEIGHT: Flags = Flags {
    input: false,
    output: false,
    weight: true,
    layer_output: false,
};

/// Buffers used during a build. Capacity is reused between graphs.
#[derive(Clone, Default, Debug)]
pub struct BuildTables {
    /// Leaf of each weight that the graph uses, by [`WeightId`].
    pub leafs: Vec<Option<TensorId>>,
    pruning: Pruning,
}

/// Builder of a single graph. Methods never fail; see the module documentation.
pub struct Builder<'a> {
    pub(super) g: &'a mut Graph,
    pub(super) weights: &'a [WeightLeaf],
    pub(super) tables: &'a mut BuildTables,
    pub(super) inputs: &'a mut Inputs,
    pub(super) params: BuildParams,
    pub(super) cache: Cache<'a>,
    pub(super) adaptation: &'a Adaptation,
    pub(super) layer: Option<u32>,
    pub(super) n_attention: usize,
    pub(super) n_cross: usize,
    /// Cells selected by the last indexer.
    pub(super) selection: Option<TensorId>,
    pub(super) n_states: usize,
    /// Number of loop iterations in the graph.
    n_rounds: usize,
    /// Values of an encoder that later parts of the graph read.
    pub(super) encoded: EncodedValues,
    /// Integer table whose rows were looked up but not yet used as expert ids.
    pub(super) int_rows: Option<Name>,
    last_name: Name,
    error: Option<BuildError>,
    /// Activation function and the function that replaces it.
    replacement: Option<(&'static [Unary], UnaryReplacement)>,
}

/// Adds the nodes that replace an activation.
type UnaryReplacement = fn(&mut Builder<'_>, TensorId) -> TensorId;

impl<'a> Builder<'a> {
    /// Creates a builder for graphs over KV cache cells. Clears `graph`, `tables`, and `inputs` but reuses their
    /// capacity.
    pub fn over_cells(
        graph: &'a mut Graph,
        weights: &'a [WeightLeaf],
        tables: &'a mut BuildTables,
        inputs: &'a mut Inputs,
        params: BuildParams,
        cells: &'a CacheView,
    ) -> Builder<'a> {
        let n_pools = cells.pools.len();
        Self::new(graph, weights, tables, inputs, params, Cache::Cells(cells), n_pools)
    }

    /// Creates a builder for graphs that attend only to the batch itself. Clears `graph`, `tables`, and `inputs` but
    /// reuses their capacity.
    pub fn over_batch(
        graph: &'a mut Graph,
        weights: &'a [WeightLeaf],
        tables: &'a mut BuildTables,
        inputs: &'a mut Inputs,
        params: BuildParams,
    ) -> Builder<'a> {
        Self::new(graph, weights, tables, inputs, params, Cache::Batch, 1)
    }

    /// Creates a builder that records the memory requirements of the graph in `specs`.
    pub fn probe(
        graph: &'a mut Graph,
        weights: &'a [WeightLeaf],
        tables: &'a mut BuildTables,
        inputs: &'a mut Inputs,
        params: BuildParams,
        specs: &'a mut MemorySpecs,
    ) -> Builder<'a> {
        specs.kv.clear();
        specs.cross.clear();
        specs.states.clear();
        Self::new(graph, weights, tables, inputs, params, Cache::Probe(specs), 1)
    }

    fn new(
        graph: &'a mut Graph,
        weights: &'a [WeightLeaf],
        tables: &'a mut BuildTables,
        inputs: &'a mut Inputs,
        params: BuildParams,
        cache: Cache<'a>,
        n_pools: usize,
    ) -> Builder<'a> {
        graph.clear();
        tables.leafs.clear();
        tables.leafs.resize(weights.len(), None);
        inputs.clear(n_pools);
        Builder {
            g: graph,
            weights,
            tables,
            inputs,
            params,
            cache,
            adaptation: Adaptation::NONE,
            layer: None,
            n_attention: 0,
            n_cross: 0,
            selection: None,
            int_rows: None,
            n_states: 0,
            n_rounds: 0,
            encoded: EncodedValues::default(),
            last_name: Name::default(),
            error: None,
            replacement: None,
        }
    }

    /// Finishes the build.
    ///
    /// # Errors
    /// Returns the first error of the build.
    pub fn finish(self) -> Result<(), BuildError> {
        self.error.map_or(Ok(()), Err)
    }

    /// Returns the graph under construction, for ops without a builder method.
    pub fn graph(&mut self) -> &mut Graph {
        self.g
    }

    /// Returns the number of tokens.
    pub fn n_tokens(&self) -> usize {
        self.params.n_tokens
    }

    /// Names a value after its `let` binding. The first name is kept: `let y = x` does not rename `x`.
    pub fn name(&mut self, t: TensorId, base: &'static str) {
        let name = Name {
            base,
            layer: self.layer,
        };
        self.last_name = name;
        let tensor = self.g.tensor_mut(t);
        if tensor.name.base.is_empty() {
            tensor.name = name;
        }
    }

    /// Returns the loop range `from..to`, or an empty range after recording an error if the graph would
    /// become too large.
    pub fn rounds(&mut self, from: usize, to: usize) -> Range<usize> {
        self.n_rounds = self.n_rounds.saturating_add(to.saturating_sub(from));
        if self.n_rounds > MAX_ROUNDS {
            self.fail(BuildError::TooLong { rounds: self.n_rounds });
            return 0..0;
        }
        from..to
    }

    /// Returns the loop range over the layers `from..to`, capped at `count`; see [`Builder::rounds`].
    pub fn layers(&mut self, from: usize, to: usize, count: usize) -> Range<usize> {
        self.rounds(from, to.min(count))
    }

    /// Enters a layer; subsequent names have its index.
    pub fn begin_layer(&mut self, il: usize) {
        self.layer = Some(il as u32);
    }

    /// Leaves a layer with output `x [n_embd, T]` and adds the layer's control vector.
    pub fn end_layer(&mut self, x: TensorId) -> TensorId {
        let x = self.add_direction(x);
        self.name(x, "l_out");
        self.g.tensor_mut(x).flags.layer_output = true;
        self.layer = None;
        x
    }

    /// Unwraps an optional tensor that the graph requires; records an error if the tensor is missing.
    pub fn present<H: Placeholder + Copy>(&mut self, handle: &Option<H>, tensor: impl fmt::Display) -> H {
        handle.unwrap_or_else(|| {
            let (value, tensor) = (self.last_name.to_string(), tensor.to_string());
            self.fail(BuildError::Absent { value, tensor });
            H::placeholder()
        })
    }

    /// Returns the leaf of a weight, which is added on first use.
    pub fn weight(&mut self, v: impl Into<Vector>) -> TensorId {
        self.leaf(v.into().0)
    }

    /// Looks up the token embeddings: `[n_embd, T]`.
    pub fn embed(&mut self, table: Embed) -> TensorId {
        let (rows, tokens) = (self.leaf(table.0), self.tokens());
        let x = self.g.get_rows(rows, tokens);
        let x = self.ok(x, tokens);
        if self.g.tensor(x).ty == GgmlType::I32 {
            self.int_rows = Some(self.weights[table.0.0 as usize].name);
        }
        self.adapt_rows(table.0, tokens, x)
    }

    /// Looks up learned position embeddings: `[n_embd, T]`. The first `skipped` rows belong to no position. A context
    /// rejects positions beyond the table. The position of a patch is its index in reading order.
    pub fn embed_positions(&mut self, table: Embed, skipped: usize) -> TensorId {
        let is_image = self.params.grid != PatchGrid::default();
        let positions = if is_image { self.places() } else { self.positions() };
        let mut rows = self.leaf(table.0);
        let (ne, nb) = (self.g.tensor(rows).ne, self.g.tensor(rows).nb);
        let n_rows = ne[1].saturating_sub(skipped);
        if skipped > 0 {
            let rest = self.g.view(rows, [ne[0], n_rows, 1, 1], nb, (ne[1] - n_rows) * nb[1]);
            rows = self.ok(rest, rows);
        }
        let max = match self.params.part {
            GraphPart::Encoder => &mut self.inputs.max_encoded,
            GraphPart::Graph | GraphPart::Cross | GraphPart::Mtp => &mut self.inputs.max_positions,
        };
        *max = Some(max.map_or(n_rows, |n| n.min(n_rows)));
        let x = self.g.get_rows(rows, positions);
        self.ok(x, positions)
    }

    /// Returns the input of token ids, i32 `[T]`.
    pub fn tokens(&mut self) -> TensorId {
        let n = self.params.n_tokens;
        let g = &mut *self.g;
        *self
            .inputs
            .tokens
            .get_or_insert_with(|| g.input(GgmlType::I32, [n, 1, 1, 1], "tokens"))
    }

    /// Returns the input of positions, i32 `[T]`.
    pub fn positions(&mut self) -> TensorId {
        let n = self.params.n_tokens;
        let g = &mut *self.g;
        *self
            .inputs
            .positions
            .get_or_insert_with(|| g.input(GgmlType::I32, [n, 1, 1, 1], "positions"))
    }

    /// Returns the input of the encoder output, f32 `[n_embd, T_encoded]`.
    pub fn encoded(&mut self) -> TensorId {
        let ne = [self.params.n_embd, self.params.n_encoded, 1, 1];
        let g = &mut *self.g;
        *self
            .inputs
            .encoded
            .rows
            .get_or_insert_with(|| g.input(GgmlType::F32, ne, "encoded"))
    }

    /// Returns the input of the rows given to an encoder, f32 `[width, T]`.
    pub fn frames(&mut self, width: usize) -> TensorId {
        let ne = [width, self.params.n_tokens, 1, 1];
        let g = &mut *self.g;
        *self
            .inputs
            .frames
            .get_or_insert_with(|| g.input(GgmlType::F32, ne, "frames"))
    }

    /// Returns the input of the hidden states that precede the tokens, f32 `[n_embd, T]`.
    pub fn hidden_rows(&mut self) -> TensorId {
        let ne = [self.params.n_embd, self.params.n_tokens, 1, 1];
        let g = &mut *self.g;
        *self
            .inputs
            .hidden
            .get_or_insert_with(|| g.input(GgmlType::F32, ne, "hidden"))
    }

    /// Returns the input of positions along all axes, i32 `[T, axes]`.
    pub(super) fn axes(&mut self) -> TensorId {
        let n = self.params.n_tokens;
        let g = &mut *self.g;
        *self
            .inputs
            .axes
            .get_or_insert_with(|| g.input(GgmlType::I32, [n, ROPE_AXES, 1, 1], "axes"))
    }

    /// Returns the input of page table indices per token, i32 `[T]`.
    pub(super) fn table_of_token(&mut self) -> TensorId {
        let n = self.params.n_tokens;
        let g = &mut *self.g;
        *self
            .inputs
            .table_of_token
            .get_or_insert_with(|| g.input(GgmlType::I32, [n, 1, 1, 1], "table_of_token"))
    }

    /// Computes `w x + bias`, with the optional scale of the weight: `[n_in, …]` to `[n_out, …]`.
    pub fn linear(&mut self, w: Linear, x: TensorId) -> TensorId {
        let x = self.bounded(x, w.bounds.map(|[low, high, ..]| [low, high]));
        let mut y = self.product(w.weight, x);
        if let Some(scale) = w.scale {
            let scale = self.leaf(scale);
            y = self.mul(y, scale);
        }
        y = self.adapt_matmul(w.weight, x, y);
        if let Some(bias) = w.bias {
            let bias = self.leaf(bias);
            y = self.add(y, bias);
        }
        self.bounded(y, w.bounds.map(|[.., low, high]| [low, high]))
    }

    /// Clamps `x` to bounds stored in the file. In plans, which have no weight values, `x` is returned unchanged.
    fn bounded(&mut self, x: TensorId, bounds: Option<[WeightId; 2]>) -> TensorId {
        let weights = self.weights;
        let value = |id: WeightId| weights.get(id.0 as usize)?.value;
        let Some((low, high)) = bounds.and_then(|[low, high]| Some((value(low)?, value(high)?))) else {
            return x;
        };
        self.clamp(x, low, high)
    }

    /// Multiplies by an embedding table (tied output): `[n_in, …]` to `[n_rows, …]`.
    pub fn tied(&mut self, table: Embed, x: TensorId) -> TensorId {
        self.linear(Linear::tied_to(table), x)
    }

    /// Returns a placeholder for a value that does not exist under the current condition. The checks of declarations
    /// reject any use of the value.
    pub fn absent(&mut self) -> TensorId {
        if self.g.is_empty() {
            self.positions()
        } else {
            TensorId(0)
        }
    }

    /// Computes `w x` with the optional scale but without the bias: `[n_in, …]` to `[n_out, …]`.
    pub fn linear_without_bias(&mut self, w: Linear, x: TensorId) -> TensorId {
        self.linear(Linear { bias: None, ..w }, x)
    }

    /// Multiplies each head of `x [n_in, n_head, T]` by its own matrix: `[n_out, n_head, T]`.
    pub fn per_head(&mut self, w: PerHead, x: TensorId) -> TensorId {
        // Heads are the batch dimension of the matmul.
        const SWAPPED: [usize; 4] = [0, 2, 1, 3];
        let weight = self.leaf(w.0);
        let by_head = self.g.permute(x, SWAPPED);
        let by_head = self.ok(by_head, x);
        let y = self.g.mul_mat(weight, by_head);
        let y = self.ok(y, x);
        let y = self.adapt_matmul(w.0, by_head, y);
        let y = self.g.permute(y, SWAPPED);
        self.ok(y, x)
    }

    /// Computes `w x`: `[n_out, …]`. For a matrix split by rows, each device multiplies its part.
    fn product(&mut self, weight: WeightId, x: TensorId) -> TensorId {
        let weights = self.weights;
        let w = &weights[weight.0 as usize];
        let whole = [WeightPart {
            n_rows: w.ne[1],
            home: w.home,
            layout: w.layout,
        }];
        let parts = match w.parts.as_slice() {
            // A probe adds a leaf per matmul, so that shared leaves reveal weights with other uses.
            [] if matches!(self.cache, Cache::Probe(_)) => &whole[..],
            [] => {
                let weight = self.leaf(weight);
                let y = self.g.mul_mat(weight, x);
                return self.ok(y, x);
            }
            parts => parts,
        };
        let mut joined = None;
        for part in parts {
            let ne = [w.ne[0], part.n_rows, w.ne[2], w.ne[3]];
            let rows = self.stored(w, ne, (part.home, part.layout));
            let y = self.g.mul_mat(rows, x);
            let y = self.ok(y, x);
            joined = Some(match joined {
                None => y,
                Some(before) => self.concat(before, y, 0),
            });
        }
        joined.unwrap_or(x)
    }

    /// Applies RMS norm over dimension 0, times the weight.
    pub fn rms_norm(&mut self, x: TensorId, weight: Option<Vector>, eps: f32) -> TensorId {
        let weight = weight.map(|w| self.leaf(w.0));
        let y = self.g.rms_norm(x, weight, eps);
        self.ok(y, x)
    }

    /// Applies layer norm over dimension 0, with weight and bias.
    pub fn layer_norm(&mut self, x: TensorId, norm: Option<Norm>, eps: f32) -> TensorId {
        let y = self.g.norm(x, eps);
        let mut y = self.ok(y, x);
        if let Some(norm) = norm {
            let weight = self.leaf(norm.weight);
            y = self.mul(y, weight);
            if let Some(bias) = norm.bias {
                let bias = self.leaf(bias);
                y = self.add(y, bias);
            }
        }
        y
    }

    /// Applies L2 norm over dimension 0.
    pub fn l2_norm(&mut self, x: TensorId, eps: f32) -> TensorId {
        let y = self.g.l2_norm(x, eps);
        self.ok(y, x)
    }

    /// Splits `[n * d, T]` into heads `[d, n, T]`.
    pub fn heads(&mut self, x: TensorId, n: usize) -> TensorId {
        let ne = self.g.tensor(x).ne;
        let d = ne[0].checked_div(n).unwrap_or(0);
        let x = self.dense(x);
        let y = self.g.reshape(x, [d, n, ne[1], ne[2]]);
        self.ok(y, x)
    }

    /// Merges heads `[d, n, T]` into `[d * n, T]`.
    pub fn merge(&mut self, x: TensorId) -> TensorId {
        let ne = self.g.tensor(x).ne;
        let x = self.dense(x);
        let y = self.g.reshape(x, [ne[0] * ne[1], ne[2], ne[3], 1]);
        self.ok(y, x)
    }

    /// Replaces the functions `of` by `by(x)` in all later operations, to emulate the rounding of another engine.
    /// Within `by`, nothing is replaced.
    pub(crate) fn replace_unary(&mut self, of: &'static [Unary], by: UnaryReplacement) {
        self.replacement = Some((of, by));
    }

    /// Returns the replacement of `f(x)`, if [`Builder::replace_unary`] registered one.
    pub(super) fn replaced(&mut self, f: Unary, x: TensorId) -> Option<TensorId> {
        let replacement = self.replacement.take_if(|(of, _)| of.contains(&f))?;
        let y = (replacement.1)(self, x);
        self.replacement = Some(replacement);
        Some(y)
    }

    /// Repeats each head of `x [d, m, T]` `n / m` times in a row: `[d, n, T]`.
    pub fn repeat_heads(&mut self, x: TensorId, n: usize) -> TensorId {
        let [d, m, t, _] = self.g.tensor(x).ne;
        if m == 1 {
            let y = self.g.repeat(x, [d, n, t, 1]);
            return self.ok(y, x);
        }
        let dense = self.dense(x);
        let apart = self.g.reshape(dense, [d, 1, m, t]);
        let apart = self.ok(apart, x);
        let y = self.g.repeat(apart, [d, n / m.max(1), m, t]);
        let y = self.ok(y, x);
        let y = self.g.reshape(y, [d, n, t, 1]);
        self.ok(y, x)
    }

    /// Returns index `i` of a declared tensor along its last dimension of size greater than 1.
    pub fn part(&mut self, w: Vector, i: usize) -> TensorId {
        let w = self.leaf(w.0);
        let t = self.g.tensor(w);
        let last = (1..4).rev().find(|&d| t.ne[d] > 1).unwrap_or(1);
        let (mut ne, nb) = (t.ne, t.nb);
        ne[last] = 1;
        let offset = i.saturating_mul(nb[last]).min(t.nbytes());
        let y = self.g.view(w, ne, nb, offset);
        self.ok(y, w)
    }

    /// Multiplies two computed tensors, `a [k, m]` and `x [k, T]`: `[m, T]`.
    pub fn matmul(&mut self, a: TensorId, x: TensorId) -> TensorId {
        let y = self.g.mul_mat(a, x);
        self.ok(y, x)
    }

    /// Concatenates `a` and `b` along dimension `dim`.
    pub fn concat(&mut self, a: TensorId, b: TensorId, dim: usize) -> TensorId {
        let y = self.g.concat(a, b, dim);
        self.ok(y, a)
    }

    /// Prepends negative infinity to `x [n, T]`, the logits of the last `n` of `n_rows` vocabulary entries:
    /// `[n_rows, T]`.
    pub fn pad_logits(&mut self, x: TensorId, n_rows: usize) -> TensorId {
        let [n, n_tokens, ..] = self.g.tensor(x).ne;
        if n == n_rows {
            return x;
        }
        if n > n_rows {
            let value = self.last_name.to_string();
            self.fail(BuildError::TooManyLogits { value, n, n_rows });
            return x;
        }
        let one = self.slice(x, 0, 1);
        let constant = self.g.scale(one, 0.0, f32::NEG_INFINITY);
        let constant = self.ok(constant, x);
        let padding = self.g.repeat(constant, [n_rows - n, n_tokens, 1, 1]);
        let padding = self.ok(padding, x);
        self.concat(padding, x, 0)
    }

    /// Returns the elements `from..to` of dimension 0.
    pub fn slice(&mut self, x: TensorId, from: usize, to: usize) -> TensorId {
        let y = self.g.slice(x, from, to);
        self.ok(y, x)
    }

    /// Returns row `i` of a weight `[n, rows]`: `[n]`. An index out of range fails the build.
    pub fn row(&mut self, v: Vector, i: usize) -> TensorId {
        let w = self.leaf(v.0);
        let (ne, nb) = (self.g.tensor(w).ne, self.g.tensor(w).nb);
        let y = self.g.view(w, [ne[0], 1, 1, 1], nb, i.min(ne[1]) * nb[1]);
        self.ok(y, w)
    }

    /// Sets the result of the graph, narrowed to the output tokens, and the evaluation order.
    pub fn output(&mut self, result: TensorId) -> TensorId {
        self.name(result, "result");
        let result = self.with_features(result);
        let result = self.select_output_rows(result);
        self.close(result)
    }

    /// Narrows `x [n, T]` to the output tokens: `[n, n_outputs]`.
    pub(super) fn select_output_rows(&mut self, x: TensorId) -> TensorId {
        self.select_output_rows_keeping(x, None)
    }

    /// Like [`Builder::select_output_rows`], but `whole`, on which `x` may depend, is computed for all
    /// tokens.
    pub(super) fn select_output_rows_keeping(&mut self, x: TensorId, whole: Option<TensorId>) -> TensorId {
        let n = self.params.n_outputs;
        if n >= self.params.n_tokens {
            return x;
        }
        let ids = self.g.input(GgmlType::I32, [n, 1, 1, 1], "out_ids");
        self.inputs.out_ids = Some(ids);
        let kept = super::keep_output_rows(&mut self.tables.pruning, self.g, x, ids, self.params.n_tokens, whole);
        self.ok(kept, x)
    }

    /// Marks the result as an output and appends its dependencies to the evaluation order.
    pub(super) fn close(&mut self, result: TensorId) -> TensorId {
        self.g.tensor_mut(result).flags.output = true;
        self.g.expand(result);
        self.g.gather();
        result
    }

    /// Returns `x` if contiguous, else a contiguous copy.
    pub(super) fn dense(&mut self, x: TensorId) -> TensorId {
        let t = self.g.tensor(x);
        if t.is_contiguous() {
            return x;
        }
        let ne = t.ne;
        let y = self.g.cont(x, ne);
        self.ok(y, x)
    }

    pub(super) fn leaf(&mut self, id: WeightId) -> TensorId {
        let index = id.0 as usize;
        if let Some(t) = self.tables.leafs[index] {
            return t;
        }
        let weights = self.weights;
        let w = &weights[index];
        if !w.parts.is_empty() {
            let (value, weight) = (self.last_name.to_string(), w.name);
            self.fail(BuildError::Divided { value, weight });
        }
        let t = self.stored(w, w.ne, (w.home, w.layout));
        self.tables.leafs[index] = Some(t);
        t
    }

    /// Adds a leaf for a whole weight or for some of its rows.
    fn stored(&mut self, w: &WeightLeaf, ne: [usize; 4], (home, layout): (BufferSlice, Layout)) -> TensorId {
        let t = self.g.external(w.ty, ne, w.name, home, IS_WEIGHT);
        self.g.tensor_mut(t).layout = layout;
        t
    }

    /// Returns the node, or `instead` after recording the error.
    pub(super) fn ok(&mut self, node: Result<TensorId, ShapeError>, instead: TensorId) -> TensorId {
        node.unwrap_or_else(|source| {
            let value = self.last_name.to_string();
            self.fail(match self.int_rows {
                Some(tensor) => BuildError::Integers { value, tensor },
                None => BuildError::Shape { value, source },
            });
            instead
        })
    }

    pub(super) fn fail_no_ups(&mut self) {
        let value = self.last_name.to_string();
        self.fail(BuildError::NoUps { value });
    }

    pub(super) fn fail_no_hash(&mut self, head: usize, n_rows: usize) {
        let value = self.last_name.to_string();
        self.fail(BuildError::NoHash { value, head, n_rows });
    }

    pub(super) fn fail_no_keys(&mut self, layer: usize) {
        let value = self.last_name.to_string();
        self.fail(BuildError::NoKeys { value, layer });
    }

    pub(super) fn fail_none_used(&mut self) {
        let value = self.last_name.to_string();
        self.fail(BuildError::NoneUsed { value });
    }

    pub(super) fn fail_no_selection(&mut self) {
        let value = self.last_name.to_string();
        self.fail(BuildError::NoSelection { value });
    }

    pub(super) fn fail_no_memory(&mut self) {
        let value = self.last_name.to_string();
        self.fail(BuildError::NoMemory { value });
    }

    pub(super) fn fail_no_rope(&mut self) {
        let value = self.last_name.to_string();
        self.fail(BuildError::NoRope { value });
    }

    /// Records an error, unless an earlier one is recorded.
    pub(crate) fn fail(&mut self, error: BuildError) {
        self.error.get_or_insert(error);
    }

    /// Replaces the recorded error.
    pub(super) fn fail_instead(&mut self, error: BuildError) {
        self.error = Some(error);
    }

    pub(super) fn failed(&self) -> bool {
        self.error.is_some()
    }

    /// Returns true if the build failed because an optional tensor is missing.
    pub(super) fn lacks_tensor(&self) -> bool {
        matches!(
            self.error,
            Some(BuildError::Absent { .. } | BuildError::NoSelection { .. })
        )
    }
}
