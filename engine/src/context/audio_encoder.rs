//! [`AudioEncoder`]: computes the rows of audio.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::builder::AudioRules;
use crate::model::{Medium, Model};

use super::batch::{AxisPosition, BatchToken};
use super::encoder_graph::EncoderGraph;
use super::inputs::ImageInput;
use super::media::MediaRows;
use super::{ContextError, ContextParams, DecodeError, SeqSet};

/// An error that can occur when creating or using an audio encoder.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum AudioError {
    /// The model is not an audio encoder.
    #[error("{model} is not an audio encoder")]
    NotAnEncoder { model: String },
    /// The spectrogram does not belong to the samples.
    #[error("expected a spectrogram of {expected} values for {n_samples} samples, found {found}")]
    Spectrogram {
        n_samples: usize,
        expected: usize,
        found: usize,
    },
    /// The audio is too short for one row.
    #[error("the audio has {n_samples} samples; the encoder needs at least {least}")]
    TooShort { n_samples: usize, least: usize },
    /// The graph cannot be reserved.
    #[error(transparent)]
    Context(#[from] ContextError),
    /// The graph cannot be computed.
    #[error(transparent)]
    Compute(#[from] DecodeError),
}

/// Audio encoder with its graph and compute buffers.
pub struct AudioEncoder {
    graph: EncoderGraph,
    rules: AudioRules,
    /// Number of values in a row.
    width: usize,
    /// Minimum number of positions for one row.
    least: usize,
}

impl AudioEncoder {
    /// Creates an encoder and reserves the memory for a chunk. Only the parameters for threads, precision, and
    /// profiling apply.
    ///
    /// # Errors
    /// Returns an [`AudioError`] if the model is not an audio encoder, or memory is insufficient.
    pub fn new(model: Arc<Model>, params: &ContextParams) -> Result<AudioEncoder, AudioError> {
        let rules = if model.arch().media.is_some() {
            model.audio_rules()
        } else {
            None
        };
        let Some(rules) = rules else {
            let model = model.path().display().to_string();
            return Err(AudioError::NotAnEncoder { model });
        };
        let n = rules.chunk;
        let mut graph = EncoderGraph::new(model, n, params)?;
        graph.reserve(n)?;
        let has_row = |n: usize| graph.model.rows_of(n).is_some_and(|rows| rows > 0);
        Ok(AudioEncoder {
            width: graph.model.result_shape()[0],
            least: least(n, has_row),
            graph,
            rules,
        })
    }

    /// Returns the encoder's weights and declaration.
    pub fn model(&self) -> &Arc<Model> {
        &self.graph.model
    }

    /// Returns the audio preprocessing.
    pub fn rules(&self) -> AudioRules {
        self.rules
    }

    /// Returns the number of values in a row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Returns the size of the compute buffers in bytes.
    pub fn n_bytes(&self) -> usize {
        self.graph.n_bytes()
    }

    /// Returns the number of rows of `n_samples` samples, from the declaration and the keys of the file.
    pub fn n_rows(&self, n_samples: usize) -> usize {
        let chunks = self.rules.chunks(n_samples);
        chunks.map(|frames| self.rows_of(&frames)).sum()
    }

    fn rows_of(&self, frames: &Range<usize>) -> usize {
        let n = self.rules.n_positions(frames.len());
        if n < self.least {
            return 0;
        }
        self.model().rows_of(n).unwrap_or(0)
    }

    /// Sets a flag that cancels encoding, which then returns [`DecodeError::Cancelled`].
    pub fn set_cancel(&mut self, flag: Option<Arc<AtomicBool>>) {
        self.graph.set_cancel(flag);
    }

    /// Returns a digest of a spectrogram and of the encoder, the [`MediaRows::id`] of its rows.
    pub fn id_of(&self, n_samples: usize, spectrogram: &[f32]) -> u128 {
        let data: &[u8] = bytemuck::cast_slice(spectrogram);
        self.graph.id_of(&[n_samples as u64], [data])
    }

    /// Computes the rows of audio, chunk by chunk. The spectrogram `[n_mel, n_frames]` is computed from `n_samples`
    /// samples, followed by silence up to [`AudioRules::padded_samples`].
    ///
    /// # Errors
    /// Returns an [`AudioError`] if there are too few samples, the spectrogram has a different size, or a device fails.
    pub fn encode(&mut self, n_samples: usize, spectrogram: &[f32]) -> Result<Arc<MediaRows>, AudioError> {
        let expected = self.rules.n_mel * self.rules.spectrogram_frames(n_samples);
        if spectrogram.len() != expected {
            let found = spectrogram.len();
            return Err(AudioError::Spectrogram {
                n_samples,
                expected,
                found,
            });
        }
        let mut rows = Vec::with_capacity(self.n_rows(n_samples) * self.width);
        for frames in self.rules.chunks(n_samples) {
            let n_rows = self.rows_of(&frames);
            if n_rows > 0 {
                let n_heard = self.rules.n_positions(frames.len());
                let columns = self.rules.columns(spectrogram, self.rules.read_frames(&frames));
                self.compute(n_heard, n_rows, &columns, &mut rows)?;
            }
        }
        if rows.is_empty() {
            let least = self.rules.samples_of(self.least);
            return Err(AudioError::TooShort { n_samples, least });
        }
        let id = self.id_of(n_samples, spectrogram);
        Ok(Arc::new(MediaRows::new(id, self.width, rows).of(Medium::Audio)))
    }

    /// Appends the rows of a chunk, given the number `n_heard` of positions with sound.
    fn compute(
        &mut self,
        n_heard: usize,
        n_rows: usize,
        columns: &[f32],
        rows: &mut Vec<f32>,
    ) -> Result<(), DecodeError> {
        let n = self.rules.read_positions(n_heard);
        let token = |pos: usize| BatchToken {
            token: 0,
            pos: self.rules.place(pos) as i32,
            seqs: SeqSet::one(0),
            output: true,
            n_best: 0,
            media: None,
            axes: AxisPosition::default(),
        };
        let tokens: Vec<BatchToken> = (0..n).map(token).collect();
        let start = rows.len();
        rows.resize(start + n_rows * self.width, 0.0);
        let image = ImageInput::default();
        self.graph.compute(&tokens, n_heard, image, columns, &mut rows[start..])
    }
}

/// Returns the minimum number of positions, up to `n`, with a true `has_row`. It is true for `n` and for all
/// numbers above the minimum. Each call builds a graph, and the minimum is small: the search goes up in powers of 2.
fn least(n: usize, has_row: impl Fn(usize) -> bool) -> usize {
    let powers = std::iter::successors(Some(1_usize), |power| power.checked_mul(2));
    let (mut below, mut least) = (0, n);
    for power in powers.take_while(|power| *power < n) {
        if has_row(power) {
            least = power;
            break;
        }
        below = power;
    }
    while below + 1 < least {
        let middle = below.midpoint(least);
        if has_row(middle) {
            least = middle;
        } else {
            below = middle;
        }
    }
    least
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn minimum_of_positions_is_found_in_few_calls() {
        for n in [1, 2, 3, 1500] {
            for expected in 1..=n {
                let calls = Cell::new(0);
                let has_row = |positions: usize| {
                    calls.set(calls.get() + 1);
                    positions >= expected
                };
                assert_eq!(least(n, has_row), expected, "{n}");
                assert!(calls.get() <= 22, "{n}, {expected}: {} calls", calls.get());
            }
        }
    }
}
