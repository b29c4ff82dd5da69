//! [`Context`]: reservation, decoding of batches in ubatches, graph reuse.

use std::ops::{Bound, RangeBounds};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use crate::backend::{BackendParams, MemoryMap, Usage};
use crate::build::{Adaptation, BuildParams, Builder, CacheView, Inputs, MemorySpecs, Pooling, Wanted};
use crate::graph::{BufferId, Graph, NO_ROW, ROPE_AXES, TensorId};
use crate::model::{Model, RopeScaling};
use crate::sched::{Observer, SchedParams, Scheduler};

use super::adapt::Adapters;
use super::batch::{Batch, BatchToken, MAX_SEQUENCES, SeqSet, ubatch_end};
use super::encode::Encoded;
use super::hybrid::{Memory, PlaceError};
use super::memory::Span;
use super::pooled::Pooled;
use super::{ContextError, ContextParams, DecodeError, MemoryError, Perf};

/// Memory that a context holds, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// The model's weights.
    pub weights: usize,
    /// Keys and values.
    pub kv: usize,
    /// Recurrent states.
    pub states: usize,
    /// Intermediate results.
    pub compute: usize,
}

/// A model at work: KV memory, a graph and the backends that compute it.
pub struct Context {
    pub(super) model: Arc<Model>,
    params: ContextParams,
    n_ctx: usize,
    pub(super) rope: RopeScaling,
    pub(super) memory: Memory,
    pub(super) sched: Scheduler,
    pub(super) graph: BuiltGraph,
    pub(super) adapters: Adapters,
    pub(super) encoded: Encoded,
    outputs: Outputs,
    pooled: Pooled,
    staging: Staging,
    perf: Perf,
    cancel: Option<Arc<AtomicBool>>,
}

/// The graph of the last ubatch, and what it was built for.
pub(super) struct BuiltGraph {
    pub graph: Graph,
    pub leafs: Vec<Option<TensorId>>,
    inputs: Inputs,
    pub result: Option<TensorId>,
    /// `None` after anything that makes the graph stale.
    pub built_for: Option<(BuildParams, CacheView)>,
}

/// Logits of the last batch.
#[derive(Default)]
struct Outputs {
    /// `[n_outputs, n_vocab]`
    logits: Vec<f32>,
    /// Row of each token of the batch.
    rows: Vec<Option<u32>>,
    width: usize,
}

/// Input values on their way to the devices; kept to allocate once.
#[derive(Default)]
struct Staging {
    i32s: Vec<i32>,
    i64s: Vec<i64>,
}

impl Context {
    /// Makes a context and reserves all memory that decoding will need.
    pub fn new(model: Arc<Model>, params: &ContextParams) -> Result<Context, ContextError> {
        let n_ctx = if params.n_ctx == 0 {
            model.base().n_ctx_train()
        } else {
            params.n_ctx
        };
        let params = checked(params, &model, n_ctx)?;
        let mut sched = new_scheduler(&model, &params)?;
        for (i, buffer) in model.buffers().iter().enumerate() {
            let id = sched.register_buffer(buffer.clone(), Usage::Weights);
            assert_eq!(
                id,
                BufferId(i as u32),
                "the homes of the weights name the model's buffers by position"
            );
        }
        let rope = rope_scaling(&model, &params);
        let cached = if model.bidirectional() {
            MemorySpecs::default()
        } else {
            model.memory_specs_in(build_params(&model, n_ctx, rope))?
        };
        let mut memory = Memory::new(&cached, n_ctx, &params)?;
        let placement = model.placement();
        memory.allocate(
            |layer| placement.kv_device(layer).clone(),
            |buffer| sched.register_buffer(buffer, Usage::Any),
        )?;
        let pooled = Pooled::new(&model, params.pooling, params.n_seq_max, params.n_batch);
        let graph = BuiltGraph {
            graph: Graph::new(),
            leafs: Vec::new(),
            inputs: Inputs::default(),
            result: None,
            built_for: None,
        };
        let mut context = Context {
            model,
            params,
            n_ctx,
            rope,
            memory,
            sched,
            graph,
            adapters: Adapters::default(),
            encoded: Encoded::default(),
            outputs: Outputs::default(),
            pooled,
            staging: Staging::default(),
            perf: Perf::default(),
            cancel: None,
        };
        context.reserve()?;
        Ok(context)
    }

    /// The model.
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// The settings, with defaults filled in.
    pub fn params(&self) -> &ContextParams {
        &self.params
    }

    /// Cells of KV memory.
    pub fn n_ctx(&self) -> usize {
        self.n_ctx
    }

    /// False if any number of positions fits, as with models of nothing but recurrent layers, whatever [`Context::n_ctx`] is.
    pub fn is_limited(&self) -> bool {
        self.memory.is_limited()
    }

    /// Memory held.
    pub fn sizes(&self) -> Sizes {
        Sizes {
            weights: self.model.n_bytes(),
            kv: self.memory.kv.n_bytes(),
            states: self.memory.states.n_bytes(),
            compute: self.sched.reserve_sizes().iter().sum(),
        }
    }

    /// Counters.
    pub fn perf(&self) -> Perf {
        self.perf
    }

    /// Sets the counters to zero.
    pub fn reset_perf(&mut self) {
        self.perf = Perf::default();
    }

    /// Decoding stops between ubatches once the flag is set.
    pub fn set_cancel(&mut self, flag: Option<Arc<AtomicBool>>) {
        self.cancel = flag;
    }

    /// Shows the nodes of every graph to an observer from now on; `None` ends it.
    pub fn set_observer(&mut self, observer: Option<Box<dyn Observer>>) {
        self.sched.set_observer(observer);
    }

    /// The position at which a sequence continues.
    pub fn n_past(&self, seq: usize) -> usize {
        self.memory.next_pos(seq) as usize
    }

    /// Cells in use.
    pub fn n_used(&self) -> usize {
        self.memory.n_used()
    }

    /// Computes a batch: its tokens enter the KV memory, and the logits of those that want output can be read by
    /// [`Context::logits`]. On an error the memory is as before.
    pub fn decode(&mut self, batch: &Batch) -> Result<(), DecodeError> {
        self.check(batch.tokens())?;
        for buffer in self.model.buffers() {
            buffer.check()?;
        }
        if self.memory.kv.needs_shift() {
            self.apply_shift()?;
        }
        self.outputs.start(batch.tokens());
        self.pooled.plan(batch.tokens());
        self.memory.begin(batch.tokens());
        match self.decode_ubatches(batch.tokens()) {
            Ok(()) => {
                self.memory.commit();
                Ok(())
            }
            Err(e) => {
                self.memory.rollback();
                self.outputs.start(&[]);
                self.pooled.plan(&[]);
                Err(e)
            }
        }
    }

    /// Logits `[n_vocab]` (or an embedding) of the token at `index` of the last batch, if its output was wanted.
    pub fn logits(&self, index: usize) -> Option<&[f32]> {
        let row = (*self.outputs.rows.get(index)?)? as usize;
        self.outputs
            .logits
            .get(row * self.outputs.width..(row + 1) * self.outputs.width)
    }

    /// The embedding of a sequence of the last batch, or its scores, in a context with pooling.
    pub fn embedding(&self, seq: usize) -> Option<&[f32]> {
        let width = self.outputs.width;
        let row = self.pooled.row_of(seq)?;
        self.outputs.logits.get(row * width..(row + 1) * width)
    }

    /// Forgets all sequences, encoded ones too.
    pub fn clear(&mut self) {
        self.encoded.clear();
        self.memory.clear();
    }

    /// Removes a range of positions of a sequence.
    pub fn seq_rm(&mut self, seq: usize, range: impl RangeBounds<usize>) -> Result<(), MemoryError> {
        self.memory.remove(seq, span(range))
    }

    /// Makes `to` share a range of positions of `from`, and all that was encoded for it.
    pub fn seq_cp(&mut self, from: usize, to: usize, range: impl RangeBounds<usize>) -> Result<(), MemoryError> {
        self.memory.copy(from, to, span(range))?;
        self.encoded.share(from, to);
        Ok(())
    }

    /// Removes all sequences but one.
    pub fn seq_keep(&mut self, seq: usize) -> Result<(), MemoryError> {
        self.memory.keep(seq)?;
        self.encoded.keep(seq);
        Ok(())
    }

    /// Moves a range of positions of a sequence by `delta`.
    pub fn seq_add(&mut self, seq: usize, range: impl RangeBounds<usize>, delta: i32) -> Result<(), MemoryError> {
        self.memory.add(seq, span(range), delta)
    }

    fn check(&self, tokens: &[BatchToken]) -> Result<(), DecodeError> {
        // Room first: a prompt that is too long for the context is told so, whatever the batch size.
        let used = self.memory.n_used();
        if self.memory.is_limited() && used + tokens.len() > self.n_ctx {
            return Err(DecodeError::ContextFull {
                needed: tokens.len(),
                used,
                n_ctx: self.n_ctx,
            });
        }
        let max = self.params.n_batch;
        if tokens.len() > max {
            return Err(DecodeError::BatchTooLarge {
                found: tokens.len(),
                max,
            });
        }
        self.check_tokens(tokens, std::array::from_fn(|seq| self.memory.next_pos(seq)))?;
        if self.model.arch().encoder {
            let seqs = tokens.iter().fold(0, |all, t| all | t.seqs.0);
            if let Some(seq) = SeqSet(seqs).iter().find(|&seq| !self.encoded.has(seq)) {
                return Err(DecodeError::NotEncoded { seq });
            }
        }
        Ok(())
    }

    /// Checks ids, sequences and positions, which go on from `next` of each sequence.
    pub(super) fn check_tokens(
        &self,
        tokens: &[BatchToken],
        mut next: [i32; MAX_SEQUENCES],
    ) -> Result<(), DecodeError> {
        if tokens.is_empty() {
            return Err(DecodeError::EmptyBatch);
        }
        let n_vocab = self.model.base().n_vocab();
        for (index, t) in tokens.iter().enumerate() {
            if t.token as usize >= n_vocab {
                return Err(DecodeError::Token {
                    index,
                    token: t.token,
                    n_vocab,
                });
            }
            let n_seq_max = self.params.n_seq_max;
            if t.seqs.is_empty() || t.seqs.iter().any(|s| s >= n_seq_max) {
                return Err(DecodeError::Sequence { index, n_seq_max });
            }
            if !self.adapters.agree(t.seqs) {
                return Err(DecodeError::Adapters { index });
            }
            for seq in t.seqs.iter() {
                let expected = next[seq];
                if t.pos != expected || t.pos == i32::MAX {
                    return Err(DecodeError::Position {
                        index,
                        seq,
                        expected,
                        found: t.pos,
                    });
                }
                next[seq] = expected + 1;
            }
        }
        Ok(())
    }

    fn decode_ubatches(&mut self, tokens: &[BatchToken]) -> Result<(), DecodeError> {
        let mut from = 0;
        while from < tokens.len() {
            if self.cancel.as_ref().is_some_and(|c| c.load(Ordering::Relaxed)) {
                return Err(DecodeError::Cancelled);
            }
            let to = if is_whole(&self.model, self.params.pooling) {
                tokens.len()
            } else {
                ubatch_end(tokens, from, self.params.n_ubatch, self.params.n_outputs_max)
            };
            let start = Instant::now();
            self.decode_ubatch(&tokens[from..to])?;
            self.perf.record(to - from, start.elapsed());
            from = to;
        }
        Ok(())
    }

    fn decode_ubatch(&mut self, tokens: &[BatchToken]) -> Result<(), DecodeError> {
        if !self.model.bidirectional() {
            self.memory.place(tokens).map_err(|e| match e {
                PlaceError::States(e) => e.into(),
                PlaceError::Full => DecodeError::ContextFull {
                    needed: tokens.len(),
                    used: self.memory.n_used(),
                    n_ctx: self.n_ctx,
                },
            })?;
        }
        self.memory.set_view(false);
        let n_outputs = self
            .pooled
            .n_rows()
            .unwrap_or_else(|| tokens.iter().filter(|t| t.output).count());
        self.build(self.build_params(tokens.len(), n_outputs))?;
        let n_threads = if tokens.len() == 1 {
            self.params.n_threads
        } else {
            self.params.n_threads_batch
        };
        self.sched.set_threads(n_threads);
        self.set_inputs(tokens, self.model.bidirectional())?;
        self.sched.compute(&self.graph.graph)?;
        self.read_outputs(n_outputs)
    }

    /// Builds and allocates the graph unless the last one serves.
    pub(super) fn build(&mut self, params: BuildParams) -> Result<(), DecodeError> {
        let wanted = (&params, self.memory.view());
        if self.graph.built_for.as_ref().is_some_and(|(p, v)| (p, v) == wanted) {
            self.perf.n_reused += 1;
            return Ok(());
        }
        self.graph
            .build(&self.model, params, self.memory.view(), &self.adapters.adaptation)?;
        self.sched.alloc_graph(&mut self.graph.graph)?;
        self.graph.remember(params, self.memory.view());
        self.perf.n_built += 1;
        Ok(())
    }

    pub(super) fn build_params(&self, n_tokens: usize, n_outputs: usize) -> BuildParams {
        BuildParams {
            n_tokens,
            // A graph without outputs would compute nothing that is wanted but the cache: one row keeps it whole and simple.
            n_outputs: n_outputs.max(1),
            n_encoded: self.encoded.len(),
            wanted: self.pooled.wanted(n_outputs),
            ..build_params(&self.model, self.n_ctx, self.rope)
        }
    }

    /// Plans the largest graphs: a full ubatch with and without many outputs, over all cells, and a single token.
    pub(super) fn reserve(&mut self) -> Result<(), ContextError> {
        let n_tokens = self.params.n_ubatch.min(self.n_ctx);
        self.memory.set_view(true);
        let mut n_encoded = 0;
        if self.model.arch().encoder {
            n_encoded = self.n_encode_max();
            let params = self.encoder_params(n_encoded);
            self.plan(params)?;
            self.encoded.reserve(params.n_embd, n_encoded);
        }
        for (n_tokens, n_outputs) in [
            (n_tokens, self.params.n_outputs_max.min(n_tokens)),
            (1, 1),
            (n_tokens, 1),
        ] {
            let params = self.build_params(n_tokens, n_outputs);
            self.plan(BuildParams { n_encoded, ..params })?;
        }
        self.outputs.reserve(
            self.params.n_outputs_max,
            self.model.base().n_vocab(),
            self.params.n_batch,
        );
        let n_cells = self.memory.kv.longest_list();
        self.staging.i32s.reserve(n_cells.max(ROPE_AXES * n_tokens));
        self.staging.i64s.reserve(n_cells.max(n_tokens));
        Ok(())
    }

    /// Reserves memory for the graph of these sizes.
    fn plan(&mut self, params: BuildParams) -> Result<(), ContextError> {
        self.graph
            .build(&self.model, params, self.memory.view(), &self.adapters.adaptation)?;
        Ok(self.sched.reserve(&mut self.graph.graph)?)
    }

    /// Fills the inputs. `whole`: the graph is one over the batch, without a memory.
    pub(super) fn set_inputs(&mut self, tokens: &[BatchToken], whole: bool) -> Result<(), DecodeError> {
        let (inputs, graph, sched) = (&self.graph.inputs, &self.graph.graph, &mut self.sched);
        let Staging { i32s, i64s } = &mut self.staging;
        let mut write = |id: Option<TensorId>, values: &mut dyn Iterator<Item = i32>| match id {
            None => Ok(()),
            Some(id) => {
                i32s.clear();
                i32s.extend(values);
                sched.set_input(graph, id, bytemuck::cast_slice(i32s))
            }
        };
        write(inputs.tokens, &mut tokens.iter().map(|t| t.token as i32))?;
        write(inputs.positions, &mut tokens.iter().map(|t| t.pos))?;
        write(inputs.axes, &mut along_axes(tokens.iter().map(|t| t.pos)))?;
        write(
            inputs.sequences,
            &mut tokens.iter().map(|t| t.seqs.first().unwrap_or(0) as i32),
        )?;
        if self.pooled.n_rows().is_some() {
            write(inputs.out_ids, &mut self.pooled.tokens().iter().map(|&i| i as i32))?;
        } else {
            let wanted = tokens.iter().enumerate().filter(|(_, t)| t.output);
            let none = tokens.iter().all(|t| !t.output).then_some(tokens.len() as i32 - 1);
            write(inputs.out_ids, &mut wanted.map(|(i, _)| i as i32).chain(none))?;
        }
        if let Some(id) = inputs.shares {
            sched.set_input(graph, id, bytemuck::cast_slice(self.pooled.shares(tokens)))?;
        }
        for (k, &scales) in inputs.adapter_scales.iter().enumerate() {
            // As bits: the type does not matter to a copy.
            let scale = |t: &BatchToken| self.adapters.scale(k, t.seqs).to_bits() as i32;
            write(scales, &mut tokens.iter().map(scale))?;
        }
        if whole {
            // The cells that attention sees are the tokens themselves.
            for pool in &inputs.pools {
                write(pool.positions, &mut tokens.iter().map(|t| t.pos))?;
                if let Some(id) = pool.sequences {
                    i64s.clear();
                    i64s.extend(tokens.iter().map(|t| t.seqs.0 as i64));
                    sched.set_input(graph, id, bytemuck::cast_slice(i64s))?;
                }
            }
        }
        self.encoded.set_inputs(&inputs.encoded, graph, sched)?;
        if whole {
            return Ok(());
        }
        if let Some((from, to)) = inputs.states {
            let (from_cells, to_cells) = self.memory.states.moves();
            sched.set_input(graph, from, bytemuck::cast_slice(from_cells))?;
            sched.set_input(graph, to, bytemuck::cast_slice(to_cells))?;
        }
        for (p, (pool, cells)) in inputs.pools.iter().zip(self.memory.kv.pools()).enumerate() {
            let n_kv = self.memory.view().pools[p].n_kv;
            if let Some(id) = pool.cells {
                sched.set_input(graph, id, bytemuck::cast_slice(self.memory.kv.cells_of(p)))?;
            }
            if let Some(id) = pool.positions {
                sched.set_input(graph, id, bytemuck::cast_slice(&cells.positions()[..n_kv]))?;
            }
            if let Some(id) = pool.sequences {
                i64s.clear();
                i64s.extend(cells.seqs()[..n_kv].iter().map(|s| s.0 as i64));
                sched.set_input(graph, id, bytemuck::cast_slice(i64s))?;
            }
        }
        for joined in &inputs.joined {
            let [tokens, groups] = joined.pools.map(|p| &self.memory.kv.pools()[p]);
            let n_groups = self.memory.view().pools[joined.pools[1]].n_kv;
            let behind = tokens.len() as i64;
            i64s.clear();
            let cells = self.memory.kv.cells_of(joined.pools[1]).iter();
            i64s.extend(cells.map(|&c| if c == NO_ROW { c } else { behind + c }));
            sched.set_input(graph, joined.cells, bytemuck::cast_slice(i64s))?;
            i32s.clear();
            i32s.extend_from_slice(tokens.positions());
            i32s.extend_from_slice(&groups.positions()[..n_groups]);
            sched.set_input(graph, joined.positions, bytemuck::cast_slice(i32s))?;
            i64s.clear();
            i64s.extend(
                tokens
                    .seqs()
                    .iter()
                    .chain(&groups.seqs()[..n_groups])
                    .map(|s| s.0 as i64),
            );
            sched.set_input(graph, joined.sequences, bytemuck::cast_slice(i64s))?;
        }
        Ok(())
    }

    fn read_outputs(&mut self, n_outputs: usize) -> Result<(), DecodeError> {
        let Some(result) = self.graph.result.filter(|_| n_outputs > 0) else {
            return Ok(());
        };
        let width = self.graph.graph.tensor(result).ne[0];
        let rows = self.outputs.append(n_outputs, width);
        self.sched
            .read_tensor(&self.graph.graph, result, 0, bytemuck::cast_slice_mut(rows))?;
        Ok(())
    }
}

impl BuiltGraph {
    fn build(
        &mut self,
        model: &Model,
        params: BuildParams,
        view: &CacheView,
        adaptation: &Adaptation,
    ) -> Result<(), crate::build::BuildError> {
        self.built_for = None;
        let (graph, leafs, inputs) = (&mut self.graph, &mut self.leafs, &mut self.inputs);
        let b = if params.encoder || model.bidirectional() {
            Builder::over_batch(graph, model.leafs(), leafs, inputs, params)
        } else {
            Builder::over_cells(graph, model.leafs(), leafs, inputs, params, view)
        };
        let mut b = b.adapted(adaptation);
        self.result = if params.encoder {
            model.encode(&mut b).map(|result| b.output(result))
        } else {
            Some(model.build(&mut b))
        };
        b.finish()
    }

    fn remember(&mut self, params: BuildParams, view: &CacheView) {
        self.built_for = Some((params, view.clone()));
    }
}

impl Outputs {
    fn reserve(&mut self, n_outputs: usize, width: usize, n_batch: usize) {
        self.logits.reserve(n_outputs * width);
        self.rows.reserve(n_batch);
    }

    fn start(&mut self, tokens: &[BatchToken]) {
        self.logits.clear();
        self.rows.clear();
        let mut n = 0;
        self.rows.extend(tokens.iter().map(|t| {
            t.output.then(|| {
                n += 1;
                n - 1
            })
        }));
    }

    /// Room for `n` more rows.
    fn append(&mut self, n: usize, width: usize) -> &mut [f32] {
        self.width = width;
        let start = self.logits.len();
        self.logits.resize(start + n * width, 0.0);
        &mut self.logits[start..]
    }
}

/// The model's devices in order, the CPU last.
fn new_scheduler(model: &Model, params: &ContextParams) -> Result<Scheduler, ContextError> {
    let backend_params = BackendParams {
        n_threads: params.n_threads,
        n_threads_batch: params.n_threads_batch,
    };
    let devices = &model.placement().devices;
    let backends = devices
        .iter()
        .map(|d| d.clone().backend(&backend_params))
        .collect::<Result<_, _>>()?;
    Ok(Scheduler::new(backends, MemoryMap::default(), SchedParams::default())?)
}

/// What the graphs of a context are built for: a single token here.
fn build_params(model: &Model, n_ctx: usize, rope: RopeScaling) -> BuildParams {
    BuildParams {
        n_tokens: 1,
        n_outputs: 1,
        encoder: false,
        // The number of rows makes no difference to what memory a graph needs.
        n_encoded: 1,
        n_embd: model.base().n_embd(),
        n_ctx,
        rope_kind: model.arch().rope_kind(model.base()),
        rope,
        rope_sections: model.base().rope_sections,
        n_rot: model.base().n_rot(),
        causal: !model.bidirectional(),
        wanted: Wanted::Result,
    }
}

fn rope_scaling(model: &Model, params: &ContextParams) -> RopeScaling {
    let trained = model.base().rope;
    RopeScaling {
        freq_base: params.rope_freq_base.unwrap_or(trained.freq_base),
        freq_scale: params.rope_freq_scale.unwrap_or(trained.freq_scale),
        ext_factor: params.yarn_ext_factor.unwrap_or(trained.ext_factor),
        n_ctx_orig: params.yarn_orig_ctx.unwrap_or(trained.n_ctx_orig),
        ..trained
    }
}

/// The settings with defaults filled in, or what is wrong with them. `n_ctx` is the number of cells that results from them.
fn checked(params: &ContextParams, model: &Model, n_ctx: usize) -> Result<ContextParams, ContextError> {
    let mut p = params.clone();
    let positive = [
        ("n_batch", p.n_batch, usize::MAX),
        ("n_ubatch", p.n_ubatch, usize::MAX),
        ("n_seq_max", p.n_seq_max, MAX_SEQUENCES),
        ("n_threads", p.n_threads, 1024),
        ("n_threads_batch", p.n_threads_batch, 1024),
    ];
    for (name, value, max) in positive {
        if value == 0 || value > max {
            let expected = if max == usize::MAX {
                "at least 1".to_owned()
            } else {
                format!("1 to {max}")
            };
            return Err(ContextError::Param {
                name,
                expected,
                found: value.to_string(),
            });
        }
    }
    if n_ctx > i32::MAX as usize {
        let expected = format!("at most {}", i32::MAX);
        return Err(ContextError::Param {
            name: "n_ctx",
            expected,
            found: n_ctx.to_string(),
        });
    }
    for (name, value) in [
        ("rope_freq_base", p.rope_freq_base),
        ("rope_freq_scale", p.rope_freq_scale),
    ] {
        if let Some(v) = value.filter(|v| !(v.is_finite() && *v > 0.0)) {
            return Err(ContextError::Param {
                name,
                expected: "a positive number".to_owned(),
                found: v.to_string(),
            });
        }
    }
    p.n_batch = p.n_batch.min(n_ctx);
    if is_whole(model, p.pooling) {
        p.n_ubatch = p.n_batch;
    }
    p.n_ubatch = p.n_ubatch.min(p.n_batch);
    p.n_outputs_max = match p.n_outputs_max {
        _ if p.pooling == Some(Pooling::None) => p.n_ubatch,
        0 => p.n_seq_max,
        n => n,
    };
    Ok(p)
}

/// Whether batches are computed whole: without a memory there are no parts, and pooling needs all of a sequence at hand.
fn is_whole(model: &Model, pooling: Option<Pooling>) -> bool {
    model.bidirectional() || pooling.is_some_and(|p| p != Pooling::None)
}

/// Positions of text along all axes, axis by axis: it advances along all of them but the last at once.
pub(super) fn along_axes(positions: impl Iterator<Item = i32> + Clone) -> impl Iterator<Item = i32> {
    let last = ROPE_AXES - 1;
    (0..ROPE_AXES).flat_map(move |axis| positions.clone().map(move |p| if axis == last { 0 } else { p }))
}

fn span(range: impl RangeBounds<usize>) -> Span {
    let clamp = |n: usize| i32::try_from(n).unwrap_or(i32::MAX);
    let from = match range.start_bound() {
        Bound::Included(&n) => clamp(n),
        Bound::Excluded(&n) => clamp(n).saturating_add(1),
        Bound::Unbounded => 0,
    };
    let to = match range.end_bound() {
        Bound::Included(&n) => clamp(n).saturating_add(1),
        Bound::Excluded(&n) => clamp(n),
        Bound::Unbounded => i32::MAX,
    };
    Span { from, to }
}
