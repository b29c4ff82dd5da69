//! Audio in prompts: the rows of audio, and their positions among the tokens.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use engine::builder::{AudioRules, Spectrogram};
use engine::context::{AudioEncoder, AudioError, ContextParams, MediaRows};
use engine::model::Model;
use media::audio::{MelKind, decode, duration, mel, normalize};
use media::{Limits, MediaError as DecodeError};

use crate::images::{ImageError, RecentRows, TextsAround};

/// Name of audio in the text of a prompt.
const SHOWN: &str = "[audio]";

/// An error that can occur with audio in prompts.
#[derive(Debug, thiserror::Error)]
pub enum SoundError {
    /// The projector is invalid, or belongs to another language model.
    #[error(transparent)]
    Projector(#[from] ImageError),
    /// The audio cannot be encoded.
    #[error(transparent)]
    Encoder(#[from] AudioError),
    /// The audio cannot be decoded.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// The projector encodes another medium than the requested one.
    #[error("the projector encodes {found}, not {wanted}")]
    Medium {
        /// Media that the projector encodes.
        found: &'static str,
        /// Requested medium.
        wanted: &'static str,
    },
}

/// Lengths of audio, and its positions in prompts. Usable while the encoder is busy.
#[derive(Clone, Debug)]
pub struct AudioLayout {
    /// Texts before and after the rows of audio.
    around: [String; 2],
    model: Arc<Model>,
    rules: AudioRules,
}

impl AudioLayout {
    /// Returns the number of rows of an audio file in memory, from the headers of the file and of its packets.
    ///
    /// # Errors
    /// Returns a [`SoundError`] if the file exceeds a limit or a header is invalid.
    pub fn n_rows(&self, file: &[u8], limits: &Limits) -> Result<usize, SoundError> {
        // Durations are multiples of a sample. The difference is smaller than one, and larger than rounding errors.
        let n_samples = (duration(file, limits)? * self.rules.rate as f64 - 1e-6)
            .ceil()
            .max(0.0) as usize;
        // All chunks except the last have the same length.
        let mut known = (0, 0);
        let rows = self.rules.chunks(n_samples).map(|frames| {
            let n = self.rules.n_positions(frames.len());
            if known.0 != n {
                known = (n, self.model.rows_of(n).unwrap_or(0));
            }
            known.1
        });
        Ok(rows.sum())
    }

    /// Returns the texts around audio.
    pub(crate) fn texts_around(&self) -> TextsAround<'_> {
        (&self.around, SHOWN)
    }
}

/// Audio encoder for a language model.
pub struct AudioProjector {
    encoder: AudioEncoder,
    layout: AudioLayout,
    recent: RecentRows,
}

impl AudioProjector {
    /// Creates a projector from an encoder and the texts around its rows.
    ///
    /// # Errors
    /// Returns an [`AudioError`] if the model is not an audio encoder, or memory is insufficient.
    pub(crate) fn new(
        model: Arc<Model>,
        context: &ContextParams,
        around: [String; 2],
    ) -> Result<AudioProjector, AudioError> {
        let encoder = AudioEncoder::new(model.clone(), context)?;
        let rules = encoder.rules();
        Ok(AudioProjector {
            encoder,
            layout: AudioLayout { around, model, rules },
            recent: RecentRows::default(),
        })
    }

    /// Returns the lengths of audio, and its positions in prompts.
    pub fn layout(&self) -> &AudioLayout {
        &self.layout
    }

    /// Returns the number of rows of a chunk.
    pub(crate) fn chunk_rows(&self) -> usize {
        self.encoder.n_rows(self.encoder.rules().chunk_samples())
    }

    /// Encodes an audio file in memory without the cache of recent audio.
    ///
    /// # Errors
    /// Returns a [`SoundError`] if the file exceeds a limit or cannot be decoded, or the encoder fails.
    pub fn encode(&mut self, file: &[u8], limits: &Limits) -> Result<Arc<MediaRows>, SoundError> {
        encode_audio(&mut self.encoder, file, limits)
    }

    /// Sets a flag that cancels encoding.
    pub fn set_cancel(&mut self, flag: Option<Arc<AtomicBool>>) {
        self.encoder.set_cancel(flag);
    }

    /// Returns the encoder.
    pub fn encoder(&self) -> &AudioEncoder {
        &self.encoder
    }

    /// Returns the rows of an audio file in memory. Recent audio is not encoded again.
    ///
    /// # Errors
    /// Returns a [`SoundError`] if the file cannot be decoded, or the encoder fails.
    pub fn rows(&mut self, file: &[u8]) -> Result<Arc<MediaRows>, SoundError> {
        let (n_samples, spectrogram) = decoded(&self.encoder, file, &Limits::default())?;
        let id = self.encoder.id_of(n_samples, &spectrogram);
        if let Some(rows) = self.recent.get(id) {
            return Ok(rows);
        }
        let rows = self.encoder.encode(n_samples, &spectrogram)?;
        self.recent.push(rows.clone());
        Ok(rows)
    }
}

/// Returns the rows of an audio file in memory.
///
/// # Errors
/// Returns a [`SoundError`] if the file cannot be decoded, or the encoder fails.
pub fn encode_audio(encoder: &mut AudioEncoder, file: &[u8], limits: &Limits) -> Result<Arc<MediaRows>, SoundError> {
    let (n_samples, spectrogram) = decoded(encoder, file, limits)?;
    Ok(encoder.encode(n_samples, &spectrogram)?)
}

/// Decodes audio. Returns the number of samples and the spectrogram.
fn decoded(encoder: &AudioEncoder, file: &[u8], limits: &Limits) -> Result<(usize, Vec<f32>), DecodeError> {
    let rules = encoder.rules();
    // The rules allow a single rate.
    let rate = u32::try_from(rules.rate).unwrap_or(u32::MAX);
    let mut samples = decode(file, rate, limits)?.samples;
    let n_samples = samples.len();
    let kind = match rules.mel {
        Spectrogram::Whisper | Spectrogram::Normalized => MelKind::Whisper,
        Spectrogram::Gemma4 => MelKind::Gemma4,
        Spectrogram::Granite => MelKind::Granite,
        Spectrogram::Conformer => MelKind::Conformer,
        Spectrogram::Samples => {
            samples.resize(rules.padded_samples(n_samples), 0.0);
            return Ok((n_samples, samples));
        }
    };
    // A chunk has at least one sample.
    samples.resize(n_samples.max(1), 0.0);
    let longest = if rules.has_own_spectrograms() {
        rules.chunk_samples().max(1)
    } else {
        samples.len()
    };
    let mut spectrogram = Vec::new();
    for chunk in samples.chunks(longest) {
        let mut padded = chunk.to_vec();
        if rules.mel == Spectrogram::Normalized {
            normalize(&mut padded);
        }
        padded.resize(rules.padded_samples(chunk.len()), 0.0);
        let mut of_chunk = mel(&padded, kind, rules.n_mel).data;
        of_chunk.truncate(rules.spectrogram_frames(chunk.len()) * rules.n_mel);
        spectrogram.append(&mut of_chunk);
    }
    Ok((n_samples, spectrogram))
}
