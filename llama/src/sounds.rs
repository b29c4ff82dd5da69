//! Audio in prompts: projector files, the rows of audio, and projectors of either medium.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use engine::builder::{AudioRules, Spectrogram};
use engine::context::{AudioEncoder, AudioError, ContextParams, MediaEncoder, MediaRows};
use engine::model::{LoadParams, Medium, Model};
use engine::vocab::Vocab;
use media::audio::{MelKind, decode, duration, mel};
use media::{Limits, MediaError as DecodeError};

use crate::images::{ImageError, ImageLayout, Projector, RecentRows, model_and_texts, tokenize};
use crate::template::{Prompt, PromptTemplate, Rendered};

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
        /// Medium that the projector encodes.
        found: &'static str,
        /// Requested medium.
        wanted: &'static str,
    },
}

/// Lengths of audio, and its places in prompts. Usable while the encoder is busy.
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
    /// [`SoundError`] if the file exceeds a limit or a header is invalid.
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
}

/// Encoder of audio for a language model.
pub struct AudioProjector {
    encoder: AudioEncoder,
    layout: AudioLayout,
    recent: RecentRows,
}

impl AudioProjector {
    /// Returns the encoder.
    pub fn encoder(&self) -> &AudioEncoder {
        &self.encoder
    }

    /// Returns the rows of an audio file in memory. Recent audio is not encoded again.
    ///
    /// # Errors
    /// [`SoundError`] if the file cannot be decoded, or the encoder fails.
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
/// [`SoundError`] if the file cannot be decoded, or the encoder fails.
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
    samples.resize(rules.padded_samples(n_samples), 0.0);
    let kind = match rules.mel {
        Spectrogram::Whisper => MelKind::Whisper,
    };
    Ok((n_samples, mel(&samples, kind, rules.n_mel).data))
}

/// Sizes of images or lengths of audio, and their places in prompts. Usable while the encoder is busy.
#[derive(Clone, Debug)]
pub enum MediaLayout {
    /// The projector encodes images.
    Image(ImageLayout),
    /// The projector encodes audio.
    Audio(AudioLayout),
}

impl MediaLayout {
    /// Returns the medium that the projector encodes.
    pub fn medium(&self) -> Medium {
        match self {
            MediaLayout::Image(_) => Medium::Image,
            MediaLayout::Audio(_) => Medium::Audio,
        }
    }

    /// Returns the number of rows of a file in memory, from its headers.
    ///
    /// # Errors
    /// [`SoundError`] if the file exceeds a limit, its header is invalid, or the encoder takes no images of its size.
    pub fn n_rows(&self, file: &[u8], limits: &Limits) -> Result<usize, SoundError> {
        match self {
            MediaLayout::Image(layout) => Ok(layout.n_rows(file, limits)?),
            MediaLayout::Audio(layout) => layout.n_rows(file, limits),
        }
    }

    /// Returns the texts between the rows of a file in memory, each with the number of rows before it.
    ///
    /// # Errors
    /// [`SoundError`] if the file exceeds a limit, its header is invalid, or the encoder takes no images of its size.
    pub fn texts(&self, file: &[u8], limits: &Limits) -> Result<Vec<(usize, String)>, SoundError> {
        match self {
            MediaLayout::Image(layout) => Ok(layout.texts(file, limits)?),
            MediaLayout::Audio(_) => Ok(Vec::new()),
        }
    }

    /// Tokenizes a prompt like [`ImageLayout::tokenized`].
    pub fn tokenized(
        &self,
        vocab: &Vocab,
        template: Option<&PromptTemplate>,
        rendered: Rendered,
        media: &[Arc<MediaRows>],
    ) -> Prompt {
        match self {
            MediaLayout::Image(layout) => layout.tokenized(vocab, template, rendered, media),
            MediaLayout::Audio(layout) => tokenize(&layout.around, SHOWN, vocab, template, rendered, media),
        }
    }
}

/// Encoder of images or of audio for a language model.
#[expect(clippy::large_enum_variant, reason = "a process has few projectors")]
pub enum MediaProjector {
    /// Encoder of images.
    Image(Projector),
    /// Encoder of audio.
    Audio(AudioProjector),
}

impl MediaProjector {
    /// Loads a projector file like [`Projector::open`].
    ///
    /// # Errors
    /// [`SoundError`] if the file is invalid or belongs to another model.
    pub fn open(
        path: &Path,
        load: &LoadParams,
        context: &ContextParams,
        language: &Model,
    ) -> Result<MediaProjector, SoundError> {
        let (model, around) = model_and_texts(path, load, language)?;
        Ok(match medium_of(&model) {
            Medium::Image => {
                let encoder = MediaEncoder::new(model, context).map_err(ImageError::from)?;
                MediaProjector::Image(Projector::new(encoder, around))
            }
            Medium::Audio => {
                let encoder = AudioEncoder::new(model.clone(), context)?;
                let rules = encoder.rules();
                MediaProjector::Audio(AudioProjector {
                    encoder,
                    layout: AudioLayout { around, model, rules },
                    recent: RecentRows::default(),
                })
            }
        })
    }

    /// Returns the sizes of images or lengths of audio, and their places in prompts.
    pub fn layout(&self) -> MediaLayout {
        match self {
            MediaProjector::Image(projector) => MediaLayout::Image(projector.layout().clone()),
            MediaProjector::Audio(projector) => MediaLayout::Audio(projector.layout.clone()),
        }
    }

    /// Encodes a file in memory without the cache of recent media.
    ///
    /// # Errors
    /// [`SoundError`] if the file exceeds a limit or cannot be decoded, or the encoder fails.
    pub fn encode(&mut self, file: &[u8], limits: &Limits) -> Result<Arc<MediaRows>, SoundError> {
        match self {
            MediaProjector::Image(projector) => Ok(projector.encode(file, limits)?),
            MediaProjector::Audio(projector) => encode_audio(&mut projector.encoder, file, limits),
        }
    }

    /// Returns the rows of a file in memory. A recent file is not encoded again.
    ///
    /// # Errors
    /// [`SoundError`] if the file cannot be decoded, or the encoder fails.
    pub fn rows(&mut self, file: &[u8]) -> Result<Arc<MediaRows>, SoundError> {
        match self {
            MediaProjector::Image(projector) => Ok(projector.rows(file)?),
            MediaProjector::Audio(projector) => projector.rows(file),
        }
    }

    /// Sets a flag that cancels encoding.
    pub fn set_cancel(&mut self, flag: Option<Arc<AtomicBool>>) {
        match self {
            MediaProjector::Image(projector) => projector.set_cancel(flag),
            MediaProjector::Audio(projector) => projector.encoder.set_cancel(flag),
        }
    }

    /// Limits the number of rows of an image like [`Projector::limit_rows`]. Does nothing without limits.
    ///
    /// # Errors
    /// [`SoundError`] if the projector encodes audio, or the limits are invalid.
    pub fn limit_rows(&mut self, min: Option<usize>, max: Option<usize>) -> Result<(), SoundError> {
        match self {
            MediaProjector::Image(projector) => Ok(projector.limit_rows(min, max)?),
            MediaProjector::Audio(_) if min.is_none() && max.is_none() => Ok(()),
            MediaProjector::Audio(_) => Err(SoundError::Medium {
                found: "audio",
                wanted: "images",
            }),
        }
    }

    /// Returns the encoder's weights and declaration.
    pub fn model(&self) -> &Arc<Model> {
        match self {
            MediaProjector::Image(projector) => projector.encoder().model(),
            MediaProjector::Audio(projector) => projector.encoder().model(),
        }
    }

    /// Returns the number of rows that a context reserves for a medium: those of an image, or of a chunk of audio.
    pub fn n_rows(&self) -> usize {
        match self {
            MediaProjector::Image(projector) => projector.encoder().sizes().max_rows(),
            MediaProjector::Audio(projector) => {
                let encoder = projector.encoder();
                encoder.n_rows(encoder.rules().chunk_samples())
            }
        }
    }

    /// Returns the rows of an image file in memory.
    ///
    /// # Errors
    /// [`SoundError`] if the projector encodes audio, the file cannot be decoded, or the encoder fails.
    pub fn image(&mut self, file: &[u8]) -> Result<Arc<MediaRows>, SoundError> {
        match self {
            MediaProjector::Image(projector) => Ok(projector.rows(file)?),
            MediaProjector::Audio(_) => Err(SoundError::Medium {
                found: "audio",
                wanted: "images",
            }),
        }
    }

    /// Returns the rows of an audio file in memory.
    ///
    /// # Errors
    /// [`SoundError`] if the projector encodes images, the file cannot be decoded, or the encoder fails.
    pub fn audio(&mut self, file: &[u8]) -> Result<Arc<MediaRows>, SoundError> {
        match self {
            MediaProjector::Audio(projector) => projector.rows(file),
            MediaProjector::Image(_) => Err(SoundError::Medium {
                found: "images",
                wanted: "audio",
            }),
        }
    }

    /// Tokenizes a prompt like [`Projector::tokenized`].
    pub fn tokenized(
        &self,
        vocab: &Vocab,
        template: Option<&PromptTemplate>,
        rendered: Rendered,
        media: &[Arc<MediaRows>],
    ) -> Prompt {
        match self {
            MediaProjector::Image(projector) => projector.tokenized(vocab, template, rendered, media),
            MediaProjector::Audio(projector) => {
                tokenize(&projector.layout.around, SHOWN, vocab, template, rendered, media)
            }
        }
    }
}

/// Returns the medium that an encoder reads.
fn medium_of(model: &Model) -> Medium {
    model.arch().media.map_or(Medium::Image, |media| media.medium)
}

/// Loads the encoder of a projector file and computes the rows of an image or audio file.
///
/// # Errors
/// [`SoundError`] if the file cannot be decoded, or the encoder fails.
pub fn encode_medium(model: Arc<Model>, context: &ContextParams, file: &[u8]) -> Result<Arc<MediaRows>, SoundError> {
    match medium_of(&model) {
        Medium::Image => {
            let mut encoder = MediaEncoder::new(model, context).map_err(ImageError::from)?;
            Ok(crate::images::encode_image(&mut encoder, file)?)
        }
        Medium::Audio => encode_audio(&mut AudioEncoder::new(model, context)?, file, &Limits::default()),
    }
}
