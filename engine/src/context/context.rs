//! [`Context`]: what runs graphs, what is remembered and what a batch asks for, put together to decode batches in ubatches.

use std::ops::RangeBounds;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use crate::backend::Usage;
use crate::builder::{BuildParams, GraphPart, HiddenRows, MemorySpecs};
use crate::model::Model;
use crate::sched::Observer;

use super::adapt::{AdapterConfig, Adapters};
use super::admission::{Admission, Rejection, Validator, to_blame};
use super::batch::{Batch, BatchToken, ubatch_end};
use super::encoded::Encoded;
use super::graphs::GraphSource;
use super::hidden::Hidden;
use super::hybrid::{Memory, PlaceError};
use super::inputs::Ubatch;
use super::memory::Span;
use super::outputs::Outputs;
use super::runner::GraphRunner;
use super::settings::Settings;
use super::shift::rotate_moved_keys;
use super::state::StateAccess;
use super::{ContextError, ContextParams, DecodeError, MemoryError, Perf, SetAdaptersError, StateError};

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
    model: Arc<Model>,
    settings: Settings,
    /// What runs graphs.
    runner: GraphRunner,
    /// What is remembered of sequences: keys, values and states.
    memory: Memory,
    /// What the encoder made of them.
    encoded: Encoded,
    adapters: Adapters,
    /// What the last batch asked for.
    outputs: Outputs,
    /// Hidden rows of the last batch.
    hidden: Hidden,
    /// Which tokens of it were computed.
    admission: Admission,
    perf: Perf,
    cancel: Option<Arc<AtomicBool>>,
}

impl Context {
    /// Makes a context and reserves all memory that decoding will need.
    pub fn new(model: Arc<Model>, params: &ContextParams) -> Result<Context, ContextError> {
        let settings = Settings::new(params, &model)?;
        let mut runner = GraphRunner::new(&model, &settings.params)?;
        let cached = if model.bidirectional() {
            MemorySpecs::default()
        } else {
            model.memory_specs_in(settings.build_params(&model))?
        };
        let mut memory = Memory::new(&cached, settings.n_ctx, &settings.params)?;
        let placement = model.placement();
        memory.allocate(
            |layer| placement.kv_device(layer).clone(),
            |buffer| runner.register_buffer(buffer, Usage::Any),
        )?;
        let mut context = Context {
            outputs: Outputs::new(&model, &settings),
            hidden: Hidden::new(&model, &settings),
            model,
            settings,
            runner,
            memory,
            encoded: Encoded::default(),
            adapters: Adapters::default(),
            admission: Admission::default(),
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
        &self.settings.params
    }

    /// Cells of KV memory.
    pub fn n_ctx(&self) -> usize {
        self.settings.n_ctx
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
            compute: self.runner.n_bytes(),
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

    /// Once the flag is set, decoding ends within about a node of the graph, with an error.
    pub fn set_cancel(&mut self, flag: Option<Arc<AtomicBool>>) {
        self.runner.set_cancel(flag.clone());
        self.cancel = flag;
    }

    /// Shows the nodes of every graph to an observer from now on; `None` ends it.
    pub fn set_observer(&mut self, observer: Option<Box<dyn Observer>>) {
        self.runner.set_observer(observer);
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
    /// [`Context::logits`].
    ///
    /// What is wrong with a token or a sequence (a token that does not exist, a wrong position, no room) rejects that sequence and those
    /// that share tokens of the batch with it: their memory is as before, their tokens have no logits, and [`Context::rejected`] says why.
    /// The others are computed. On an error nothing was: the memory is as before. Where all sequences are rejected, it is the
    /// first one's error.
    pub fn decode(&mut self, batch: &Batch) -> Result<(), DecodeError> {
        self.decode_after(batch, &[])
    }

    /// As [`Context::decode`], in a context that runs a layer of multi-token prediction: each token comes with the hidden row before it, in the
    /// order of the batch, `hidden` `[n_tokens, n_embd]`.
    pub fn decode_after(&mut self, batch: &Batch, hidden: &[f32]) -> Result<(), DecodeError> {
        let mut admission = std::mem::take(&mut self.admission);
        let decoded = self.decode_admitted(batch.tokens(), hidden, &mut admission);
        if decoded.is_err() {
            admission.clear();
            self.outputs.clear();
            self.hidden.clear();
        }
        self.admission = admission;
        decoded
    }

    /// The sequences that the last [`Context::decode`] or [`Context::encode`] left out, and why; empty if it failed.
    pub fn rejected(&self) -> &[Rejection] {
        self.admission.rejections()
    }

    /// Runs the encoder over a batch, whole, in place of what was encoded before. Decoding then attends to the rows of a token's
    /// sequence. Positions of each sequence count from 0; which outputs are wanted does not matter. What is wrong with a sequence rejects it
    /// as with [`Context::decode`]. On an error nothing is encoded.
    pub fn encode(&mut self, batch: &Batch) -> Result<(), DecodeError> {
        let mut admission = std::mem::take(&mut self.admission);
        self.encoded.clear();
        let encoded = self.encode_admitted(batch.tokens(), &mut admission);
        if encoded.is_err() {
            admission.clear();
            self.encoded.clear();
        }
        self.admission = admission;
        encoded
    }

    /// Logits `[n_vocab]` (or an embedding) of the token at `index` of the last batch, if its output was wanted.
    pub fn logits(&self, index: usize) -> Option<&[f32]> {
        self.outputs.of_token(index)
    }

    /// The hidden row `[n_embd]` of the token at `index` of the last batch, which the last projection made its logits of, if such rows are kept of it.
    pub fn hidden(&self, index: usize) -> Option<&[f32]> {
        self.hidden.of_token(index)
    }

    /// The embedding of a sequence of the last batch, or its scores, in a context with pooling.
    pub fn embedding(&self, seq: usize) -> Option<&[f32]> {
        self.outputs.of_sequence(seq)
    }

    /// Forgets all sequences, encoded ones too.
    pub fn clear(&mut self) {
        self.encoded.clear();
        self.memory.clear();
    }

    /// Removes a range of positions of a sequence.
    pub fn seq_rm(&mut self, seq: usize, range: impl RangeBounds<usize>) -> Result<(), MemoryError> {
        self.memory.remove(seq, Span::of(range))
    }

    /// Makes `to` share a range of positions of `from`, and all that was encoded for it.
    pub fn seq_cp(&mut self, from: usize, to: usize, range: impl RangeBounds<usize>) -> Result<(), MemoryError> {
        self.memory.copy(from, to, Span::of(range))?;
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
        self.memory.add(seq, Span::of(range), delta)
    }

    /// Makes room in a context that is full: keeps the first `n_keep` positions of a sequence, removes the older half of the others,
    /// and moves the rest down to follow the kept ones. The number of positions removed; 0 if there were fewer than two to choose from.
    ///
    /// What remains was computed in sight of what is removed, so the logits that follow are close to, and not the same as, those of
    /// the shorter text decoded anew.
    pub fn shift_context(&mut self, seq: usize, n_keep: usize) -> Result<usize, MemoryError> {
        let n_gone = self.n_past(seq).saturating_sub(n_keep) / 2;
        if n_gone > 0 {
            // Both are below the number of positions, which are i32.
            let from = n_keep as i32;
            let to = from + n_gone as i32;
            self.memory.close_up(seq, Span { from, to })?;
        }
        Ok(n_gone)
    }

    /// An error if this model's keys cannot move at all, so that [`Context::shift_context`] never will.
    pub fn check_shift(&self) -> Result<(), MemoryError> {
        self.memory.check_shift()
    }

    /// What the user asked of adapters.
    pub(super) fn adapter_config(&self) -> &AdapterConfig {
        self.adapters.config()
    }

    /// Takes other adapters, or, on an error, keeps the ones before.
    pub(super) fn adapt(&mut self, config: AdapterConfig) -> Result<(), SetAdaptersError> {
        let n_seq_max = self.settings.params.n_seq_max;
        let Err(config) = self.adapters.rescale(config, n_seq_max) else {
            return Ok(());
        };
        // Graphs still being computed read the old buffers.
        self.runner.synchronize().map_err(ContextError::from)?;
        let before = self.adapters.replace(config, n_seq_max, &mut self.runner);
        let reserved = self.reserve();
        let unused = match reserved {
            Ok(()) => before,
            Err(_) => std::mem::replace(&mut self.adapters, before),
        };
        self.adapters.let_go(unused, &mut self.runner);
        Ok(reserved?)
    }

    /// What restoring a state needs.
    pub(super) fn state_access(&mut self) -> Result<StateAccess<'_>, StateError> {
        self.runner.synchronize()?;
        Ok(StateAccess {
            model: &self.model,
            settings: &self.settings,
            adapters: &self.adapters,
            memory: &mut self.memory,
            buffers: self.runner.buffers_mut(),
        })
    }

    /// What saving a state needs, after keys that were due to be rotated have been.
    pub(super) fn rotated_state_access(&mut self) -> Result<StateAccess<'_>, StateError> {
        self.rotate_moved_keys()?;
        self.state_access()
    }

    fn validator(&self) -> Validator<'_> {
        Validator {
            model: &self.model,
            settings: &self.settings,
            adapters: &self.adapters,
        }
    }

    /// An error if a file that weights are mapped from was shortened.
    fn check_weights(&self) -> Result<(), DecodeError> {
        let mut buffers = self.model.buffers().iter();
        Ok(buffers.try_for_each(|buffer| buffer.check())?)
    }

    fn rotate_moved_keys(&mut self) -> Result<(), DecodeError> {
        if !self.memory.kv.needs_shift() {
            return Ok(());
        }
        rotate_moved_keys(&self.model, &mut self.memory.kv, &mut self.runner)
    }

    /// Decodes what can be of a batch.
    fn decode_admitted(
        &mut self,
        batch: &[BatchToken],
        hidden: &[f32],
        admission: &mut Admission,
    ) -> Result<(), DecodeError> {
        self.hidden.check(batch.len(), hidden)?;
        admission.admit(batch, self.validator(), &self.memory, &self.encoded)?;
        self.check_weights()?;
        self.rotate_moved_keys()?;
        loop {
            let tokens = admission.tokens();
            self.outputs.start(batch, admission.admitted(), tokens);
            self.hidden.start(batch, admission.admitted(), hidden);
            self.memory.begin(tokens);
            let Err(error) = self.decode_ubatches(tokens) else {
                self.memory.commit();
                return Ok(());
            };
            self.memory.rollback();
            // What shows while cells are taken: the others are decoded without those sequences.
            let seqs = to_blame(&error);
            let Some(seqs) = seqs else { return Err(error) };
            admission.reject(batch, seqs, error)?;
        }
    }

    /// Encodes what can be of a batch.
    fn encode_admitted(&mut self, batch: &[BatchToken], admission: &mut Admission) -> Result<(), DecodeError> {
        admission.admit_encode(batch, self.validator())?;
        let tokens = admission.tokens();
        self.check_weights()?;
        self.prepare(self.encoder_params(tokens.len()))?;
        self.run(tokens, false, self.settings.params.n_threads_batch)?;
        let Some(width) = self.runner.result_width() else {
            return Ok(());
        };
        let rows = self.encoded.take(tokens, width);
        match self.runner.read_result(rows)? {
            Some(read) => Ok(read.wait(bytemuck::cast_slice_mut(rows))?),
            None => Ok(()),
        }
    }

    fn decode_ubatches(&mut self, tokens: &[BatchToken]) -> Result<(), DecodeError> {
        let (n_ubatch, n_outputs) = (self.settings.params.n_ubatch, self.settings.params.n_outputs_max);
        let mut from = 0;
        while from < tokens.len() {
            if self.cancel.as_ref().is_some_and(|c| c.load(Ordering::Relaxed)) {
                return Err(DecodeError::Cancelled);
            }
            let to = if self.settings.is_whole {
                tokens.len()
            } else {
                ubatch_end(tokens, from, n_ubatch, n_outputs)
            };
            let start = Instant::now();
            self.decode_ubatch(&tokens[from..to])?;
            self.perf.record(to - from, start.elapsed());
            from = to;
        }
        self.hidden.found.complete()?;
        Ok(self.outputs.found.complete()?)
    }

    fn decode_ubatch(&mut self, tokens: &[BatchToken]) -> Result<(), DecodeError> {
        let has_memory = !self.model.bidirectional();
        if has_memory {
            self.place(tokens)?;
        }
        self.memory.set_view(false);
        let n_rows = self.outputs.n_rows(tokens);
        self.prepare(self.decoder_params(tokens.len(), n_rows))?;
        self.run(tokens, has_memory, self.settings.n_threads(tokens.len()))?;
        let n_hidden = self.hidden.computed(tokens.len(), n_rows);
        if n_hidden > 0 {
            let read = self.runner.read_hidden(self.hidden.append(n_hidden))?;
            read.into_iter()
                .for_each(|read| self.hidden.found.await_rows(n_hidden, read));
        }
        match self.runner.result_width() {
            Some(width) if n_rows > 0 => {
                let read = self.runner.read_result(self.outputs.found.append(n_rows, width))?;
                read.into_iter()
                    .for_each(|read| self.outputs.found.await_rows(n_rows, read));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Takes cells for the tokens of a ubatch.
    fn place(&mut self, tokens: &[BatchToken]) -> Result<(), DecodeError> {
        self.memory.place(tokens).map_err(|e| match e {
            PlaceError::States(e) => e.into(),
            PlaceError::Full => DecodeError::ContextFull {
                needed: tokens.len(),
                used: self.memory.n_used(),
                n_ctx: self.settings.n_ctx,
            },
        })
    }

    /// Gets the graph of these sizes ready.
    fn prepare(&mut self, params: BuildParams) -> Result<(), DecodeError> {
        let source = GraphSource {
            model: &self.model,
            view: self.memory.view(),
            adaptation: &self.adapters.adaptation,
        };
        match self.runner.prepare(source, params)? {
            true => self.perf.n_built += 1,
            false => self.perf.n_reused += 1,
        }
        Ok(())
    }

    /// Computes the prepared graph for these tokens.
    fn run(&mut self, tokens: &[BatchToken], has_memory: bool, n_threads: usize) -> Result<(), DecodeError> {
        let ubatch = Ubatch {
            tokens,
            memory: has_memory.then_some(&self.memory),
            outputs: &self.outputs,
            adapters: &self.adapters,
            encoded: &self.encoded,
            hidden: self.hidden.given(tokens.len()),
        };
        Ok(self.runner.run(ubatch, n_threads)?)
    }

    fn decoder_params(&self, n_tokens: usize, n_rows: usize) -> BuildParams {
        BuildParams {
            n_tokens,
            // A graph without outputs would compute nothing that is wanted but the cache: one row keeps it whole and simple.
            n_outputs: n_rows.max(1),
            n_encoded: self.encoded.len(),
            output: self.outputs.graph_output(n_rows),
            ..self.settings.build_params(&self.model)
        }
    }

    fn encoder_params(&self, n_tokens: usize) -> BuildParams {
        BuildParams {
            part: GraphPart::Encoder,
            hidden: HiddenRows::None,
            causal: false,
            n_encoded: 0,
            ..self.decoder_params(n_tokens, n_tokens)
        }
    }

    /// Reserves memory for the largest graphs, so that decoding takes none: the encoder's, a full ubatch with and without many outputs
    /// over all cells, and a single token.
    fn reserve(&mut self) -> Result<(), ContextError> {
        let model = self.model.clone();
        let largest = self.settings.params.memory(self.settings.n_ctx).largest_graphs();
        let n_tokens = largest[0].0;
        self.memory.set_view(true);
        let mut sizes = Vec::new();
        let mut n_encoded = 0;
        if model.arch().encoder {
            n_encoded = self.settings.n_encode_max();
            sizes.push(self.encoder_params(n_encoded));
            self.encoded.reserve(model.base().n_embd(), n_encoded);
        }
        for (n_tokens, n_outputs) in largest {
            let params = self.decoder_params(n_tokens, n_outputs);
            sizes.push(BuildParams { n_encoded, ..params });
        }
        let source = GraphSource {
            model: &self.model,
            view: self.memory.view(),
            adaptation: &self.adapters.adaptation,
        };
        self.runner.reserve(source, &sizes)?;
        self.outputs.reserve(&model, &self.settings);
        self.hidden.reserve(&self.settings);
        self.admission.reserve(self.settings.params.n_batch);
        let n_cells = self.memory.kv.longest_list().max(n_encoded);
        self.runner
            .reserve_inputs(n_tokens, self.settings.params.n_seq_max, n_cells);
        Ok(())
    }
}
