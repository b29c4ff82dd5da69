//! Computes the graphs of batches: a step in ubatches, or an encoder graph.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use crate::builder::{BatchMedia, BuildParams, GraphPart, HiddenRows};
use crate::model::Model;

use super::adapt::{AdapterConfig, Adapters};
use super::admission::Validator;
use super::batch::BatchToken;
use super::encoded::Encoded;
use super::graphs::GraphSource;
use super::hybrid::{Memory, PlaceError, Transaction};
use super::inputs::Ubatch;
use super::outputs::Outputs;
use super::padding::Padding;
use super::runner::GraphRunner;
use super::settings::Settings;
use super::shift::rotate_moved_keys;
use super::step::DecodeStep;
use super::{ContextError, DecodeError, Perf, SetAdaptersError};

/// Everything that computes the graphs of a context, except its memory.
pub(super) struct Executor {
    pub model: Arc<Model>,
    pub settings: Settings,
    /// Graph runner.
    pub runner: GraphRunner,
    /// Encoder outputs.
    pub encoded: Encoded,
    pub adapters: Adapters,
    pub padding: Padding,
    pub perf: Perf,
    pub cancel: Option<Arc<AtomicBool>>,
}

impl Executor {
    /// Returns the checks of a batch.
    pub fn validator(&self) -> Validator<'_> {
        Validator {
            model: &self.model,
            settings: &self.settings,
            adapters: &self.adapters,
            media: &[],
        }
    }

    /// Decodes a step. After an error, the memory has its previous content and the results are empty.
    pub fn decode(&mut self, mut step: DecodeStep<'_>, memory: &mut Memory) -> Result<(), DecodeError> {
        self.check_weights()?;
        self.rotate_moved_keys(memory)?;
        self.store_cross(memory, step.outputs())?;
        while let Some(smaller) = self.compute(step, memory)? {
            step = smaller;
        }
        Ok(())
    }

    /// Computes all ubatches of a step. If some sequences cannot be decoded together with the others, returns the step
    /// without these sequences.
    fn compute<'a>(
        &mut self,
        mut step: DecodeStep<'a>,
        memory: &mut Memory,
    ) -> Result<Option<DecodeStep<'a>>, DecodeError> {
        let mut cells = memory.begin(step.tokens());
        while step.advance(&self.settings) {
            if let Err(error) = self.compute_ubatch(&mut step, &mut cells) {
                return step.without_offenders(error).map(Some);
            }
        }
        step.finish()?;
        // If a file was truncated during the computation, weights may have been read as zeros.
        self.check_weights()?;
        cells.commit();
        Ok(None)
    }

    fn compute_ubatch(&mut self, step: &mut DecodeStep<'_>, cells: &mut Transaction<'_>) -> Result<(), DecodeError> {
        if self.cancel.as_ref().is_some_and(|c| c.load(Ordering::Relaxed)) {
            return Err(DecodeError::Cancelled);
        }
        let start = Instant::now();
        let (tokens, outputs) = (step.ubatch(), step.outputs());
        let n_tokens = tokens.len();
        let placed = if self.model.bidirectional() {
            cells.place_nothing()
        } else {
            let n_ctx = self.settings.n_ctx;
            cells.place(tokens).map_err(|e| place_error(e, n_tokens, n_ctx))?
        };
        let settings = &self.settings;
        let most = settings.params.n_ubatch.min(settings.params.n_outputs_max);
        let suitable = may_be_padded(settings, outputs, tokens) && placed.view().states.is_empty();
        let padded = if suitable && self.padding.pad(tokens, most) {
            self.padding.tokens()
        } else {
            tokens
        };
        let params = BuildParams {
            media: self.media_of(tokens),
            ..self.decoder_params(outputs, padded.len(), outputs.n_rows(padded))
        };
        let source = GraphSource {
            model: &self.model,
            view: placed.view(),
            adaptation: &self.adapters.adaptation,
        };
        let graph = self.runner.prepare(source, params)?;
        self.perf.count_graph(graph.was_built);
        let ubatch = Ubatch {
            memory: placed.cells(),
            hidden: step.given(),
            media: step.media(),
            ..Ubatch::new(padded, outputs, &self.adapters, &self.encoded)
        };
        let computed = graph.run(ubatch, self.settings.n_threads(n_tokens))?;
        step.append(computed)?;
        self.perf.record(n_tokens, start.elapsed());
        Ok(())
    }

    /// Encodes the tokens of a batch, or `frames` in place of them. The outputs become the encoder output.
    pub fn encode(
        &mut self,
        tokens: &[BatchToken],
        frames: &[f32],
        memory: &Memory,
        outputs: &Outputs,
    ) -> Result<(), DecodeError> {
        self.check_weights()?;
        let params = self.encoder_params(outputs, tokens.len());
        let source = GraphSource {
            model: &self.model,
            view: memory.view(),
            adaptation: &self.adapters.adaptation,
        };
        let graph = self.runner.prepare(source, params)?;
        self.perf.count_graph(graph.was_built);
        let ubatch = Ubatch {
            frames,
            ..Ubatch::new(tokens, outputs, &self.adapters, &self.encoded)
        };
        let mut computed = graph.run(ubatch, self.settings.params.n_threads_batch)?;
        let Some(width) = computed.result_width() else {
            return Ok(());
        };
        let rows = self.encoded.take(tokens, width);
        match computed.read_result(rows)? {
            Some(read) => Ok(read.wait(bytemuck::cast_slice_mut(rows))?),
            None => Ok(()),
        }
    }

    /// Computes the keys and values that cross attention reads, unless they are stored for the encoder output.
    fn store_cross(&mut self, memory: &Memory, outputs: &Outputs) -> Result<(), DecodeError> {
        let n_rows = self.encoded.len();
        if n_rows == 0 || self.encoded.is_stored() || memory.view().cross.is_empty() {
            return Ok(());
        }
        let params = self.cross_params(outputs, n_rows);
        let source = GraphSource {
            model: &self.model,
            view: memory.view(),
            adaptation: &self.adapters.adaptation,
        };
        let graph = self.runner.prepare(source, params)?;
        self.perf.count_graph(graph.was_built);
        let ubatch = Ubatch::new(self.encoded.tokens(), outputs, &self.adapters, &self.encoded);
        graph.run(ubatch, self.settings.params.n_threads_batch)?;
        self.encoded.set_stored(true);
        Ok(())
    }

    /// Checks that mapped weight files were not truncated or written.
    fn check_weights(&self) -> Result<(), DecodeError> {
        let mut buffers = self.model.buffers().iter();
        Ok(buffers.try_for_each(|buffer| buffer.check())?)
    }

    /// Applies pending rotations of shifted keys.
    pub fn rotate_moved_keys(&mut self, memory: &mut Memory) -> Result<(), DecodeError> {
        if !memory.kv.needs_shift() {
            return Ok(());
        }
        rotate_moved_keys(&self.model, &mut memory.kv, &mut self.runner)
    }

    /// Applies another adapter configuration; on error, the previous one stays active.
    pub fn adapt(
        &mut self,
        config: AdapterConfig,
        memory: &mut Memory,
        outputs: &Outputs,
    ) -> Result<(), SetAdaptersError> {
        let n_seq_max = self.settings.params.n_seq_max;
        self.encoded.set_stored(false);
        let Err(config) = self.adapters.rescale(config, n_seq_max) else {
            return Ok(());
        };
        // Graphs in flight may read the old buffers.
        self.runner.synchronize().map_err(ContextError::from)?;
        let before = self.adapters.replace(config, n_seq_max, self.runner.buffers_mut());
        let reserved = self.reserve(memory, outputs);
        let unused = match reserved {
            Ok(()) => before,
            Err(_) => std::mem::replace(&mut self.adapters, before),
        };
        self.adapters.release(unused, self.runner.buffers_mut());
        tracing::debug!(applied = reserved.is_ok(), "changed the adapters");
        Ok(reserved?)
    }

    /// Reserves memory for the largest graphs, so that decoding does not allocate. These are the encoder, full
    /// ubatches with many outputs and with one output over all cells, and a single token.
    pub fn reserve(&mut self, memory: &mut Memory, outputs: &Outputs) -> Result<(), ContextError> {
        let largest = self.settings.params.memory(self.settings.n_ctx).largest_graphs();
        let n_tokens = largest[0].0;
        memory.set_view(true);
        let mut sizes = Vec::new();
        let mut n_encoded = 0;
        if self.model.arch().encoder {
            n_encoded = self.settings.n_encode_max();
            sizes.push(self.encoder_params(outputs, n_encoded));
            if !memory.view().cross.is_empty() {
                sizes.push(self.cross_params(outputs, n_encoded));
            }
            self.encoded.reserve(self.model.base().n_embd(), n_encoded);
        }
        for (n_tokens, n_outputs) in largest {
            let params = self.decoder_params(outputs, n_tokens, n_outputs);
            let params = BuildParams { n_encoded, ..params };
            if let Some(media) = self.settings.batch_media() {
                sizes.push(BuildParams { media, ..params });
            }
            sizes.push(params);
        }
        if self.settings.params.media_rows > 0 {
            self.runner.reserve_media(n_tokens, self.model.base().n_embd());
        }
        let source = GraphSource {
            model: &self.model,
            view: memory.view(),
            adaptation: &self.adapters.adaptation,
        };
        self.runner.reserve(source, &sizes)?;
        let n_cells = memory.kv.longest_list().max(n_encoded);
        let n_tokens = n_tokens.max(n_encoded);
        self.runner
            .reserve_inputs(n_tokens, self.settings.params.n_seq_max, n_cells);
        Ok(())
    }

    /// Returns the media rows of a ubatch.
    fn media_of(&self, tokens: &[BatchToken]) -> BatchMedia {
        let mut rows = tokens.iter().filter_map(|token| token.media).peekable();
        if rows.peek().is_none() {
            return BatchMedia::default();
        }
        match self.settings.batch_media() {
            Some(BatchMedia::Whole) if !rows.any(|row| row.is_image) => BatchMedia::Some,
            media => media.unwrap_or_default(),
        }
    }

    fn decoder_params(&self, outputs: &Outputs, n_tokens: usize, n_rows: usize) -> BuildParams {
        BuildParams {
            n_tokens,
            // A graph without outputs would consist of cache writes only; one output row keeps the full
            // structure.
            n_outputs: n_rows.max(1),
            n_encoded: self.encoded.len(),
            output: outputs.graph_output(n_rows),
            ..self.settings.build_params(&self.model)
        }
    }

    fn encoder_params(&self, outputs: &Outputs, n_tokens: usize) -> BuildParams {
        BuildParams {
            part: GraphPart::Encoder,
            hidden: HiddenRows::None,
            causal: false,
            n_encoded: 0,
            ..self.decoder_params(outputs, n_tokens, n_tokens)
        }
    }

    fn cross_params(&self, outputs: &Outputs, n_encoded: usize) -> BuildParams {
        BuildParams {
            part: GraphPart::Cross,
            hidden: HiddenRows::None,
            n_encoded,
            ..self.decoder_params(outputs, n_encoded, n_encoded)
        }
    }
}

/// Returns true if copies of a token change no result of a ubatch, except through recurrent states.
fn may_be_padded(settings: &Settings, outputs: &Outputs, tokens: &[BatchToken]) -> bool {
    let has_plain_outputs = settings.hidden_rows() == HiddenRows::None && !outputs.are_pooled();
    has_plain_outputs && tokens.iter().all(|token| token.media.is_none())
}

fn place_error(error: PlaceError, n_tokens: usize, n_ctx: usize) -> DecodeError {
    match error {
        PlaceError::States(error) => error.into(),
        PlaceError::Full { used } => DecodeError::ContextFull {
            needed: n_tokens,
            used,
            n_ctx,
        },
    }
}
