//! [`Context`]: decodes batches, combining the executor of graphs, the caches, and the results.

use std::ops::RangeBounds;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::backend::Usage;
use crate::builder::MemorySpecs;
use crate::model::Model;
use crate::sample::TokenLogits;
use crate::sched::Observer;

use super::adapt::{AdapterConfig, Adapters};
use super::admission::Rejection;
use super::batch::Batch;
use super::encoded::Encoded;
use super::executor::Executor;
use super::hybrid::Memory;
use super::memory::Span;
use super::padding::{Padding, runs_on_gpus};
use super::runner::GraphRunner;
use super::settings::Settings;
use super::state::StateAccess;
use super::step::Results;
use super::{ContextError, ContextParams, DecodeError, MemoryError, Perf, SetAdaptersError, StateError};

/// Memory usage of a context in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Model weights.
    pub weights: usize,
    /// KV cache, including the keys and values of cross attention.
    pub kv: usize,
    /// Recurrent states.
    pub states: usize,
    /// Compute buffers.
    pub compute: usize,
}

/// Inference state of a model: KV cache, graphs, and the backends that compute them.
pub struct Context {
    executor: Executor,
    /// KV cache and recurrent states.
    memory: Memory,
    /// Results of the last batch.
    results: Results,
}

impl Context {
    /// Creates a context and reserves all memory that decoding needs.
    ///
    /// # Errors
    /// Returns a [`ContextError`] if a parameter is invalid or memory is insufficient.
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
        let padding = Padding::new(!model.bidirectional() && runs_on_gpus(&model));
        let mut executor = Executor {
            model,
            settings,
            runner,
            encoded: Encoded::default(),
            adapters: Adapters::default(),
            padding,
            perf: Perf::default(),
            cancel: None,
        };
        let mut results = Results::new(&executor.model, &executor.settings);
        executor.reserve(&mut memory, &results.outputs)?;
        results.reserve(&executor.model, &executor.settings);
        let context = Context {
            executor,
            memory,
            results,
        };
        context.log_creation();
        Ok(context)
    }

    fn log_creation(&self) {
        let (sizes, params) = (self.sizes(), self.params());
        tracing::info!(
            n_ctx = self.n_ctx(),
            n_batch = params.n_batch,
            n_ubatch = params.n_ubatch,
            n_seq_max = params.n_seq_max,
            kv_bytes = sizes.kv,
            state_bytes = sizes.states,
            compute_bytes = sizes.compute,
            "created a context"
        );
    }

    /// Returns the model.
    pub fn model(&self) -> &Arc<Model> {
        &self.executor.model
    }

    /// Returns the parameters, with defaults resolved.
    pub fn params(&self) -> &ContextParams {
        &self.executor.settings.params
    }

    /// Returns the number of KV cache cells.
    pub fn n_ctx(&self) -> usize {
        self.executor.settings.n_ctx
    }

    /// Returns false if the number of positions is unlimited regardless of [`Context::n_ctx`], as in purely
    /// recurrent models.
    pub fn is_limited(&self) -> bool {
        self.memory.is_limited()
    }

    /// Returns the memory usage.
    pub fn sizes(&self) -> Sizes {
        Sizes {
            weights: self.executor.model.n_bytes(),
            kv: self.memory.kv.n_bytes() + self.memory.cross.n_bytes(),
            states: self.memory.states.n_bytes(),
            compute: self.executor.runner.n_bytes(),
        }
    }

    /// Returns the performance counters.
    pub fn perf(&self) -> Perf {
        self.executor.perf
    }

    /// Resets the performance counters.
    pub fn reset_perf(&mut self) {
        self.executor.perf = Perf::default();
    }

    /// Sets a cancellation flag, polled while decoding. Once it is set, decoding ends within about one graph
    /// node with [`DecodeError::Cancelled`].
    pub fn set_cancel(&mut self, flag: Option<Arc<AtomicBool>>) {
        self.executor.runner.set_cancel(flag.clone());
        self.executor.cancel = flag;
    }

    /// Sets an observer for the nodes of every graph; `None` removes it.
    pub fn set_observer(&mut self, observer: Option<Box<dyn Observer>>) {
        self.executor.runner.set_observer(observer);
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
    /// If nothing could be decoded, returns the error of the first rejected sequence or a device error. The KV cache is
    /// then unchanged.
    pub fn decode(&mut self, batch: &Batch) -> Result<(), DecodeError> {
        self.decode_after(batch, &[])
    }

    /// Decodes a batch with an MTP context. Each token needs the hidden state of its predecessor: `hidden
    /// [n_tokens, n_embd]`, in batch order. See [`Context::decode`].
    ///
    /// # Errors
    /// Returns [`DecodeError::Hidden`] if `hidden` has a different number of values, or the errors of
    /// [`Context::decode`].
    pub fn decode_after(&mut self, batch: &Batch, hidden: &[f32]) -> Result<(), DecodeError> {
        let Context {
            executor,
            memory,
            results,
        } = self;
        let step = results.admit(batch, hidden, executor.validator(), memory, &executor.encoded)?;
        executor.decode(step, memory)
    }

    /// Returns the sequences rejected by the last [`Context::decode`] or [`Context::encode`]; empty after an
    /// error.
    pub fn rejected(&self) -> &[Rejection] {
        self.results.rejections()
    }

    /// Runs the encoder on a batch and replaces the previous encoder output. The decoder then attends to the
    /// rows of a token's own sequence.
    ///
    /// Positions of each sequence start at 0; output flags are ignored. Invalid sequences are rejected as in
    /// [`Context::decode`].
    ///
    /// # Errors
    /// Returns an error if nothing could be encoded. The encoder output is then empty.
    pub fn encode(&mut self, batch: &Batch) -> Result<(), DecodeError> {
        self.encode_frames(batch, &[])
    }

    /// Runs an audio encoder on `frames [n_tokens, frame_width]` in batch order; see [`Context::encode`] and
    /// [`Model::frame_width`]. Token ids are ignored. [`Context::encode`] encodes frames of zeros.
    ///
    /// # Errors
    /// Returns [`DecodeError::Frames`] if `frames` has a different number of values.
    pub fn encode_frames(&mut self, batch: &Batch, frames: &[f32]) -> Result<(), DecodeError> {
        self.executor.encoded.clear();
        let encoded = self.encode_admitted(batch, frames);
        if encoded.is_err() {
            self.results.admission.clear();
            self.executor.encoded.clear();
        }
        encoded
    }

    fn encode_admitted(&mut self, batch: &Batch, frames: &[f32]) -> Result<(), DecodeError> {
        let Results { admission, outputs, .. } = &mut self.results;
        admission.admit_encode(batch.tokens(), self.executor.validator())?;
        let tokens = admission.tokens();
        // Otherwise, frames of rejected sequences would be encoded for other sequences.
        let expected = tokens.len() * self.executor.model.frame_width().unwrap_or(0);
        if !frames.is_empty() && frames.len() != expected {
            let found = frames.len();
            return Err(DecodeError::Frames { found, expected });
        }
        self.executor.encode(tokens, frames, &self.memory, outputs)
    }

    /// Returns the logits `[n_vocab]` (or the embedding) of the token at `index` of the last batch. Returns `None` if
    /// its `output` flag was not set, or its output is limited to the best logits.
    pub fn logits(&self, index: usize) -> Option<&[f32]> {
        match self.output(index)? {
            TokenLogits::All(logits) => Some(logits),
            TokenLogits::Best(_) => None,
        }
    }

    /// Returns the logits of the token at `index` of the last batch for sampling. Returns only the best logits if
    /// [`Batch::limit_last`] limited the token to these and the device has found them.
    pub fn output(&self, index: usize) -> Option<TokenLogits<'_>> {
        let n_vocab = self.executor.model.base().n_vocab();
        self.results.outputs.of_token(index, n_vocab)
    }

    /// Returns the hidden state `[n_embd]` before the final projection of the token at `index` of the last
    /// batch, if the context keeps hidden states.
    pub fn hidden(&self, index: usize) -> Option<&[f32]> {
        self.results.hidden.of_token(index)
    }

    /// Returns the pooled embedding or the classifier scores of a sequence of the last batch. Requires
    /// [`ContextParams::pooling`].
    pub fn embedding(&self, seq: usize) -> Option<&[f32]> {
        self.results.outputs.of_sequence(seq)
    }

    /// Removes all sequences and the encoder output.
    pub fn clear(&mut self) {
        self.executor.encoded.clear();
        self.memory.clear();
    }

    /// Removes a range of positions from a sequence.
    ///
    /// # Errors
    /// Returns a [`MemoryError`] if the range cannot be removed from recurrent states or windowed layers.
    pub fn seq_rm(&mut self, seq: usize, range: impl RangeBounds<usize>) -> Result<(), MemoryError> {
        self.memory.remove(seq, Span::of(range))
    }

    /// Makes sequence `to` share a range of positions of `from`, including the encoder output.
    ///
    /// # Errors
    /// Returns a [`MemoryError`] if a sequence id is out of range, or if recurrent states cannot be shared. They cannot
    /// if `to` has states, or if no state is available at the end of the range.
    pub fn seq_cp(&mut self, from: usize, to: usize, range: impl RangeBounds<usize>) -> Result<(), MemoryError> {
        self.memory.copy(from, to, Span::of(range))?;
        self.executor.encoded.share(from, to);
        Ok(())
    }

    /// Removes all sequences except `seq`.
    ///
    /// # Errors
    /// Returns [`MemoryError::Sequence`] if `seq` is out of range.
    pub fn seq_keep(&mut self, seq: usize) -> Result<(), MemoryError> {
        self.memory.keep(seq)?;
        self.executor.encoded.keep(seq);
        Ok(())
    }

    /// Shifts a range of positions of a sequence by `delta`.
    ///
    /// # Errors
    /// Returns a [`MemoryError`] if `seq` is out of range or shares cells with other sequences, or if cached keys
    /// cannot be shifted.
    pub fn seq_add(&mut self, seq: usize, range: impl RangeBounds<usize>, delta: i32) -> Result<(), MemoryError> {
        self.memory.add(seq, Span::of(range), delta)
    }

    /// Frees space in a full context. Keeps the first `n_keep` positions of a sequence, removes the older half of the
    /// rest, and shifts the remaining positions down. Returns the number of removed positions; 0 if fewer than two
    /// could be removed.
    ///
    /// The remaining keys and values were computed while the removed tokens were visible, so later logits
    /// only approximate those of decoding the shortened sequence.
    ///
    /// # Errors
    /// Returns a [`MemoryError`] if the sequence shares cells with other sequences, or the model does not support
    /// shifts (see [`Context::check_shift`]). Nothing changes then.
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
    /// Returns a [`MemoryError`] if its keys or states cannot be shifted.
    pub fn check_shift(&self) -> Result<(), MemoryError> {
        self.memory.check_shift()
    }

    /// Returns the requested adapters.
    pub(super) fn adapter_config(&self) -> &AdapterConfig {
        self.executor.adapters.config()
    }

    /// Applies another adapter configuration; on error, the previous one stays active.
    pub(super) fn adapt(&mut self, config: AdapterConfig) -> Result<(), SetAdaptersError> {
        self.executor.adapt(config, &mut self.memory, &self.results.outputs)
    }

    /// Returns the parts of the context needed to restore a state.
    pub(super) fn state_access(&mut self) -> Result<StateAccess<'_>, StateError> {
        self.executor.runner.synchronize()?;
        Ok(StateAccess {
            model: &self.executor.model,
            settings: &self.executor.settings,
            adapters: &self.executor.adapters,
            memory: &mut self.memory,
            buffers: self.executor.runner.buffers_mut(),
        })
    }

    /// Returns the parts of the context needed to save a state, after pending key rotations.
    pub(super) fn rotated_state_access(&mut self) -> Result<StateAccess<'_>, StateError> {
        self.executor.rotate_moved_keys(&mut self.memory)?;
        self.state_access()
    }
}
