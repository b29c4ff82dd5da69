//! [`Context`]: decodes batches in ubatches, combining the graph runner, the caches, and the outputs.

use std::ops::RangeBounds;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use crate::backend::Usage;
use crate::builder::{BuildParams, GraphPart, HiddenRows, MemorySpecs};
use crate::model::Model;
use crate::sched::Observer;

use super::adapt::{AdapterConfig, Adapters};
use super::admission::{Admission, Rejection, Validator, offending_sequences};
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

/// Memory usage of a context in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Model weights.
    pub weights: usize,
    /// KV cache.
    pub kv: usize,
    /// Recurrent states.
    pub states: usize,
    /// Compute buffers.
    pub compute: usize,
}

/// Inference state of a model: KV cache, graphs, and the backends that compute them.
pub struct Context {
    model: Arc<Model>,
    settings: Settings,
    /// Graph runner.
    runner: GraphRunner,
    /// KV cache and recurrent states of the context.
    memory: Memory,
    /// Encoder outputs.
    encoded: Encoded,
    adapters: Adapters,
    /// Outputs of the last batch.
    outputs: Outputs,
    /// Hidden states of the last batch.
    hidden: Hidden,
    /// Tokens of the last batch that were computed.
    admission: Admission,
    perf: Perf,
    cancel: Option<Arc<AtomicBool>>,
}

impl Context {
    /// Creates a context and reserves all memory that decoding needs.
    ///
    /// # Errors
    /// [`ContextError`] if a parameter is invalid or memory is insufficient.
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

    /// Returns the model.
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// Returns the parameters, with defaults resolved.
    pub fn params(&self) -> &ContextParams {
        &self.settings.params
    }

    /// Returns the number of KV cache cells.
    pub fn n_ctx(&self) -> usize {
        self.settings.n_ctx
    }

    /// Returns false if the number of positions is unlimited regardless of [`Context::n_ctx`], as in purely
    /// recurrent models.
    pub fn is_limited(&self) -> bool {
        self.memory.is_limited()
    }

    /// Returns the memory usage.
    pub fn sizes(&self) -> Sizes {
        Sizes {
            weights: self.model.n_bytes(),
            kv: self.memory.kv.n_bytes(),
            states: self.memory.states.n_bytes(),
            compute: self.runner.n_bytes(),
        }
    }

    /// Returns the performance counters.
    pub fn perf(&self) -> Perf {
        self.perf
    }

    /// Resets the performance counters.
    pub fn reset_perf(&mut self) {
        self.perf = Perf::default();
    }

    /// Sets a cancellation flag, polled while decoding. Once it is set, decoding ends within about one graph
    /// node with [`DecodeError::Cancelled`].
    pub fn set_cancel(&mut self, flag: Option<Arc<AtomicBool>>) {
        self.runner.set_cancel(flag.clone());
        self.cancel = flag;
    }

    /// Sets an observer for the nodes of every graph; `None` removes it.
    pub fn set_observer(&mut self, observer: Option<Box<dyn Observer>>) {
        self.runner.set_observer(observer);
    }

    /// Returns the next position of a sequence.
    pub fn n_past(&self, seq: usize) -> usize {
        self.memory.next_pos(seq) as usize
    }

    /// Returns the number of cells in use.
    pub fn n_used(&self) -> usize {
        self.memory.n_used()
    }

    /// Decodes a batch: its tokens enter the KV cache, and [`Context::logits`] returns the outputs of tokens
    /// with `output` set.
    ///
    /// An invalid token (unknown id, wrong position, context full) rejects its sequence and all sequences
    /// that share tokens with it. Rejected sequences keep their previous state and have no outputs; see
    /// [`Context::rejected`]. All other sequences are decoded.
    ///
    /// # Errors
    /// If nothing could be decoded: the error of the first rejected sequence, or a device error. The KV cache
    /// is then unchanged.
    pub fn decode(&mut self, batch: &Batch) -> Result<(), DecodeError> {
        self.decode_after(batch, &[])
    }

    /// Decodes a batch with an MTP context. Each token needs the hidden state of its predecessor: `hidden
    /// [n_tokens, n_embd]`, in batch order. See [`Context::decode`].
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

    /// Returns the sequences rejected by the last [`Context::decode`] or [`Context::encode`]; empty after an
    /// error.
    pub fn rejected(&self) -> &[Rejection] {
        self.admission.rejections()
    }

    /// Runs the encoder on a batch and replaces the previous encoder output. The decoder then attends to the
    /// rows of a token's own sequence.
    ///
    /// Positions of each sequence start at 0; output flags are ignored. Invalid sequences are rejected as in
    /// [`Context::decode`].
    ///
    /// # Errors
    /// If nothing could be encoded; the encoder output is then empty.
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

    /// Returns the logits `[n_vocab]` (or the embedding) of the token at `index` of the last batch, if its
    /// `output` flag was set.
    pub fn logits(&self, index: usize) -> Option<&[f32]> {
        self.outputs.of_token(index)
    }

    /// Returns the hidden state `[n_embd]` before the final projection of the token at `index` of the last
    /// batch, if the context keeps hidden states.
    pub fn hidden(&self, index: usize) -> Option<&[f32]> {
        self.hidden.of_token(index)
    }

    /// Returns the pooled embedding or the classifier scores of a sequence of the last batch. Requires
    /// [`ContextParams::pooling`].
    pub fn embedding(&self, seq: usize) -> Option<&[f32]> {
        self.outputs.of_sequence(seq)
    }

    /// Removes all sequences and the encoder output.
    pub fn clear(&mut self) {
        self.encoded.clear();
        self.memory.clear();
    }

    /// Removes a range of positions from a sequence.
    ///
    /// # Errors
    /// [`MemoryError`] if the range cannot be removed from recurrent states or windowed layers.
    pub fn seq_rm(&mut self, seq: usize, range: impl RangeBounds<usize>) -> Result<(), MemoryError> {
        self.memory.remove(seq, Span::of(range))
    }

    /// Makes sequence `to` share a range of positions of `from`, including the encoder output.
    pub fn seq_cp(&mut self, from: usize, to: usize, range: impl RangeBounds<usize>) -> Result<(), MemoryError> {
        self.memory.copy(from, to, Span::of(range))?;
        self.encoded.share(from, to);
        Ok(())
    }

    /// Removes all sequences except `seq`.
    pub fn seq_keep(&mut self, seq: usize) -> Result<(), MemoryError> {
        self.memory.keep(seq)?;
        self.encoded.keep(seq);
        Ok(())
    }

    /// Shifts a range of positions of a sequence by `delta`.
    pub fn seq_add(&mut self, seq: usize, range: impl RangeBounds<usize>, delta: i32) -> Result<(), MemoryError> {
        self.memory.add(seq, Span::of(range), delta)
    }

    /// Frees space in a full context: keeps the first `n_keep` positions of a sequence, removes the older
    /// half of the rest, and shifts the remaining positions down. Returns the number of removed positions; 0
    /// if fewer than two could be removed.
    ///
    /// The remaining keys and values were computed while the removed tokens were visible, so later logits
    /// only approximate those of decoding the shortened sequence.
    pub fn shift_context(&mut self, seq: usize, n_keep: usize) -> Result<usize, MemoryError> {
        let n_removed = self.n_past(seq).saturating_sub(n_keep) / 2;
        if n_removed > 0 {
            // Both are at most the number of positions, which fits into i32.
            let from = n_keep as i32;
            let to = from + n_removed as i32;
            self.memory.remove_and_shift(seq, Span { from, to })?;
        }
        Ok(n_removed)
    }

    /// Checks whether [`Context::shift_context`] is possible for this model.
    ///
    /// # Errors
    /// [`MemoryError`] if its keys or states cannot be shifted.
    pub fn check_shift(&self) -> Result<(), MemoryError> {
        self.memory.check_shift()
    }

    /// Returns the requested adapters.
    pub(super) fn adapter_config(&self) -> &AdapterConfig {
        self.adapters.config()
    }

    /// Applies another adapter configuration; on error, the previous one stays active.
    pub(super) fn adapt(&mut self, config: AdapterConfig) -> Result<(), SetAdaptersError> {
        let n_seq_max = self.settings.params.n_seq_max;
        let Err(config) = self.adapters.rescale(config, n_seq_max) else {
            return Ok(());
        };
        // Graphs in flight may read the old buffers.
        self.runner.synchronize().map_err(ContextError::from)?;
        let before = self.adapters.replace(config, n_seq_max, &mut self.runner);
        let reserved = self.reserve();
        let unused = match reserved {
            Ok(()) => before,
            Err(_) => std::mem::replace(&mut self.adapters, before),
        };
        self.adapters.release(unused, &mut self.runner);
        Ok(reserved?)
    }

    /// Returns the parts of the context needed to restore a state.
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

    /// Returns the parts of the context needed to save a state, after pending key rotations.
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

    /// Checks that mapped weight files were not truncated.
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

    /// Decodes the valid sequences of a batch.
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
            // An error detected during placement: retry without the offending sequences.
            let seqs = offending_sequences(&error);
            let Some(seqs) = seqs else { return Err(error) };
            admission.reject(batch, seqs, error)?;
        }
    }

    /// Encodes the valid sequences of a batch.
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

    /// Assigns cells to the tokens of a ubatch.
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

    /// Prepares a graph of the given size.
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
            // A graph without outputs would consist of cache writes only; one output row keeps the full
            // structure.
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

    /// Reserves memory for the largest graphs, so that decoding does not allocate: the encoder, full ubatches
    /// with many outputs and with one output over all cells, and a single token.
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
