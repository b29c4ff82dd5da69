//! Results of the last decode, and the decode in progress as a value.
//!
//! [`Results::admit`] starts a [`DecodeStep`] with the valid sequences of a batch. [`DecodeStep::advance`]
//! selects the next ubatch, and [`DecodeStep::finish`] completes the results. A step that is dropped before it
//! is finished clears the results.

use std::ops::Range;
use std::sync::Arc;

use crate::model::Model;

use super::DecodeError;
use super::admission::{Admission, Rejection, Validator, offending_sequences};
use super::batch::{Batch, BatchToken, UbatchLimits, ubatch_end};
use super::encoded::Encoded;
use super::hidden::Hidden;
use super::hybrid::Memory;
use super::media::MediaRows;
use super::outputs::Outputs;
use super::runner::ComputedGraph;
use super::settings::Settings;

/// Results of the last batch. Buffers are reused, so that decoding does not allocate.
pub(super) struct Results {
    /// Tokens of the batch that were computed.
    pub admission: Admission,
    pub outputs: Outputs,
    pub hidden: Hidden,
}

impl Results {
    pub fn new(model: &Model, settings: &Settings) -> Results {
        Results {
            admission: Admission::default(),
            outputs: Outputs::new(model, settings),
            hidden: Hidden::new(model, settings),
        }
    }

    /// Reserves memory for the largest batch.
    pub fn reserve(&mut self, model: &Model, settings: &Settings) {
        self.admission.reserve(settings.params.n_batch);
        self.outputs.reserve(model, settings);
        self.hidden.reserve(settings);
    }

    /// Returns the rejected sequences.
    pub fn rejections(&self) -> &[Rejection] {
        self.admission.rejections()
    }

    /// Validates a batch, with the hidden states `given` for its tokens, and starts its decode.
    ///
    /// # Errors
    /// Returns the first error found if no token can be admitted.
    pub fn admit<'a>(
        &'a mut self,
        batch: &'a Batch,
        given: &'a [f32],
        validator: Validator<'_>,
        memory: &Memory,
        encoded: &Encoded,
    ) -> Result<DecodeStep<'a>, DecodeError> {
        // Created first, so that an error clears the previous results.
        let mut step = DecodeStep {
            results: self,
            batch: batch.tokens(),
            media: batch.media(),
            given,
            ubatch: 0..0,
            is_finished: false,
        };
        step.results.hidden.check(batch.len(), given)?;
        let validator = Validator {
            media: batch.media(),
            ..validator
        };
        step.results
            .admission
            .admit(batch.tokens(), validator, memory, encoded)?;
        step.start();
        Ok(step)
    }

    fn clear(&mut self) {
        self.admission.clear();
        self.outputs.clear();
        self.hidden.clear();
    }
}

/// Decode of the valid sequences of a batch.
pub(super) struct DecodeStep<'a> {
    results: &'a mut Results,
    batch: &'a [BatchToken],
    /// Media that rows of the batch belong to.
    media: &'a [Arc<MediaRows>],
    /// Hidden states that precede the tokens of the batch, if graphs need them.
    given: &'a [f32],
    /// Current ubatch, in indices of admitted tokens.
    ubatch: Range<usize>,
    is_finished: bool,
}

impl<'a> DecodeStep<'a> {
    /// Returns the admitted tokens.
    pub fn tokens(&self) -> &[BatchToken] {
        self.results.admission.tokens()
    }

    /// Advances to the next ubatch. Returns false if all tokens are computed.
    pub fn advance(&mut self, settings: &Settings) -> bool {
        let (from, tokens) = (self.ubatch.end, self.results.admission.tokens());
        let to = if settings.is_whole {
            tokens.len()
        } else {
            let limits = UbatchLimits {
                n_tokens: settings.params.n_ubatch,
                n_outputs: settings.params.n_outputs_max,
                whole_media: settings.has_whole_media,
            };
            ubatch_end(tokens, from, limits)
        };
        self.ubatch = from..to;
        from < tokens.len()
    }

    /// Returns the tokens of the ubatch.
    pub fn ubatch(&self) -> &[BatchToken] {
        &self.tokens()[self.ubatch.clone()]
    }

    /// Returns the hidden states that precede the tokens of the ubatch; empty if graphs need none.
    pub fn given(&self) -> &[f32] {
        self.results.hidden.given(self.ubatch.clone())
    }

    /// Returns the media that rows of the batch belong to.
    pub fn media(&self) -> &[Arc<MediaRows>] {
        self.media
    }

    /// Returns the outputs, which determine the rows that the graph of the ubatch computes.
    pub fn outputs(&self) -> &Outputs {
        &self.results.outputs
    }

    /// Appends the results of the ubatch. Reads may stay pending until [`DecodeStep::finish`].
    pub fn append(&mut self, mut computed: ComputedGraph<'_>) -> Result<(), DecodeError> {
        let n_rows = self.outputs().n_rows(self.ubatch());
        let Results {
            admission,
            outputs,
            hidden,
        } = &mut *self.results;
        let n_hidden = hidden.n_rows(self.ubatch.len(), n_rows);
        if n_hidden > 0 {
            hidden.read(n_hidden, |rows| computed.read_hidden(rows))?;
        }
        let tokens = &admission.tokens()[self.ubatch.clone()];
        match computed.result_width() {
            Some(width) => outputs.read(tokens, width, &mut computed),
            None => Ok(()),
        }
    }

    /// Waits for pending reads and keeps the results.
    pub fn finish(mut self) -> Result<(), DecodeError> {
        self.results.hidden.found.complete()?;
        self.results.outputs.complete()?;
        self.is_finished = true;
        Ok(())
    }

    /// Starts again without the sequences that caused an error.
    ///
    /// # Errors
    /// Returns `error` if no tokens are left, or if it does not concern single sequences.
    pub fn without_offenders(mut self, error: DecodeError) -> Result<DecodeStep<'a>, DecodeError> {
        let Some(seqs) = offending_sequences(&error) else {
            return Err(error);
        };
        tracing::debug!(%error, "decoding again without the sequences of an error");
        self.results.admission.reject(self.batch, seqs, error)?;
        self.start();
        Ok(self)
    }

    /// Assigns result rows to the admitted tokens.
    fn start(&mut self) {
        let Results {
            admission,
            outputs,
            hidden,
        } = &mut *self.results;
        outputs.start(self.batch, admission.admitted(), admission.tokens());
        hidden.start(self.batch, admission.admitted(), self.given);
        self.ubatch = 0..0;
    }
}

impl Drop for DecodeStep<'_> {
    fn drop(&mut self) {
        if !self.is_finished {
            self.results.clear();
        }
    }
}
