//! Speech recognition with Whisper.

mod rules;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use engine::builder::AudioRules;
use engine::context::{Batch, Context, ContextError, ContextParams, DecodeError, SeqSet};
use engine::gguf::GgufError;
use engine::model::Model;
use engine::vocab::Token;
use kernels::{GgmlType, Precision};
use media::audio::{Mel, MelKind, mel};

use rules::Rules;

/// Sample rate that [`Transcriber::transcribe`] expects.
pub const SPEECH_RATE: u32 = 16_000;

/// Frames of the spectrogram per second.
const FRAMES_PER_SECOND: f64 = 100.0;
/// Samples between frames of the spectrogram.
const HOP: usize = 160;
/// Seconds of a timestamp token's step.
const TIMESTAMP_STEP: f64 = 0.02;

/// Settings of a transcription.
#[derive(Clone, Debug, Default)]
pub struct TranscribeOptions {
    /// Code of the spoken language, such as `en`; detected by default.
    pub language: Option<String>,
    /// Translates to English.
    pub translate: bool,
    /// Writes 30 seconds at a time, without times of phrases.
    pub without_timestamps: bool,
    /// Does not show the model the text of the preceding 30 seconds.
    pub without_context: bool,
}

/// A phrase with its times.
#[derive(Clone, Debug, PartialEq)]
pub struct Phrase {
    /// Start in seconds.
    pub start: f64,
    /// End in seconds.
    pub end: f64,
    /// Text, which usually starts with a space.
    pub text: String,
    /// Tokens, including timestamps.
    pub tokens: Vec<Token>,
}

/// Text of speech.
#[derive(Clone, Debug, PartialEq)]
pub struct Transcription {
    /// Code of the spoken language; `None` if the model only supports English.
    pub language: Option<String>,
    /// Phrases in the order of time.
    pub phrases: Vec<Phrase>,
}

impl Transcription {
    /// Returns the whole text.
    pub fn text(&self) -> String {
        let all: String = self.phrases.iter().map(|phrase| phrase.text.as_str()).collect();
        all.trim().to_owned()
    }
}

/// Error of [`Transcriber`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TranscribeError {
    /// The model does not recognize speech.
    #[error("architecture {arch} cannot transcribe audio; use a Whisper model")]
    Architecture {
        /// Name of the architecture.
        arch: &'static str,
    },
    /// The vocabulary lacks a token that controls the transcription.
    #[error("the vocabulary has no token {token}, which Whisper models have")]
    Token {
        /// Text of the token.
        token: String,
    },
    /// The model does not support the language.
    #[error("the model does not support the language {language}; supported: {known}")]
    Language {
        /// The requested language.
        language: String,
        /// Codes of all languages.
        known: String,
    },
    /// A metadata key has a wrong type.
    #[error(transparent)]
    Metadata(#[from] GgufError),
    /// The context cannot be created.
    #[error(transparent)]
    Context(#[from] ContextError),
    /// Running the model failed.
    #[error(transparent)]
    Decode(#[from] DecodeError),
}

type Result<T> = std::result::Result<T, TranscribeError>;

/// Returns the preprocessing of an encoder-decoder of audio.
fn audio_of(model: &Model) -> Option<AudioRules> {
    if model.arch().encoder {
        model.audio_rules()
    } else {
        None
    }
}

/// Speech recognizer.
pub struct Transcriber {
    model: Arc<Model>,
    context: Context,
    rules: Rules,
    /// Audio preprocessing. Each window of speech is one chunk.
    audio: AudioRules,
    batch: Batch,
    logits: Vec<f32>,
}

impl Transcriber {
    /// Returns true if a model recognizes speech.
    pub fn supports(model: &Model) -> bool {
        audio_of(model).is_some()
    }

    /// Creates a recognizer. Sizes in `params` are replaced by the sizes of the model. With [`Precision::Exact`], keys
    /// and values are f32.
    ///
    /// # Errors
    /// Returns a [`TranscribeError`] if the model does not recognize speech, its vocabulary lacks a control token, or
    /// the context cannot be created.
    pub fn new(model: &Arc<Model>, params: &ContextParams) -> Result<Transcriber> {
        let arch = model.arch().name;
        let audio = audio_of(model).ok_or(TranscribeError::Architecture { arch })?;
        let n_rows = audio.chunk;
        let mut params = ContextParams {
            n_ctx: n_rows,
            n_batch: n_rows,
            n_ubatch: n_rows,
            n_seq_max: 1,
            n_outputs_max: 1,
            ..params.clone()
        };
        if params.precision == Precision::Exact {
            (params.type_k, params.type_v) = (GgmlType::F32, GgmlType::F32);
        }
        Ok(Transcriber {
            rules: Rules::of(model)?,
            audio,
            context: Context::new(model.clone(), &params)?,
            model: model.clone(),
            batch: Batch::new(),
            logits: Vec::new(),
        })
    }

    /// Sets a flag that cancels a transcription with [`DecodeError::Cancelled`].
    pub fn set_cancel(&mut self, flag: Option<Arc<AtomicBool>>) {
        self.context.set_cancel(flag);
    }

    /// Transcribes speech. `samples` are mono, from -1 to 1, at [`SPEECH_RATE`].
    ///
    /// # Errors
    /// Returns a [`TranscribeError`] if the model does not support the language, or if running the model fails or is
    /// cancelled.
    pub fn transcribe(&mut self, samples: &[f32], options: &TranscribeOptions) -> Result<Transcription> {
        let spectrogram = self.spectrogram(samples);
        let n_frames = samples.len().div_ceil(HOP);
        let mut language = self.rules.language(options.language.as_deref())?;
        let (mut phrases, mut before) = (Vec::new(), Vec::new());
        let mut at = 0;
        while at < n_frames {
            self.encode(&spectrogram, at)?;
            if self.rules.is_multilingual() && language.is_none() {
                language = Some(self.detect_language()?);
            }
            let prompt = self.rules.prompt(language, options, &before);
            let tokens = self.write(&prompt, options)?;
            let start = at as f64 / FRAMES_PER_SECOND;
            let seconds = (n_frames - at).min(self.window_frames()) as f64 / FRAMES_PER_SECOND;
            let (found, used) = self.rules.phrases(&tokens, seconds);
            for (range, tokens) in found {
                let text = self.model.vocab().detokenize(tokens, false, false);
                if !text.trim().is_empty() {
                    let (start, end) = (start + range.start, start + range.end);
                    phrases.push(Phrase {
                        start,
                        end,
                        text,
                        tokens: tokens.to_vec(),
                    });
                }
            }
            if !options.without_context {
                before.extend(tokens.iter().filter(|&&token| !self.rules.is_special(token)));
            }
            at += used.map_or(self.window_frames(), |seconds| {
                (seconds * FRAMES_PER_SECOND).round() as usize
            });
        }
        let language = language.map(|token| self.rules.code(token));
        Ok(Transcription { language, phrases })
    }

    /// Returns the number of frames in a window: 30 seconds.
    fn window_frames(&self) -> usize {
        self.audio.chunk * self.audio.step
    }

    /// Returns the spectrogram, followed by a window of silence.
    fn spectrogram(&self, samples: &[f32]) -> Mel {
        let mut padded = samples.to_vec();
        padded.resize(samples.len() + self.audio.chunk_samples(), 0.0);
        mel(&padded, MelKind::Whisper, self.audio.n_mel)
    }

    /// Encodes the window that starts at frame `at`.
    fn encode(&mut self, spectrogram: &Mel, at: usize) -> Result<()> {
        let columns = self.audio.columns(&spectrogram.data, at..at + self.window_frames());
        self.context.clear();
        self.batch.clear();
        for pos in 0..self.audio.chunk {
            self.batch.push(0, pos, SeqSet::one(0), false);
        }
        Ok(self.context.encode_frames(&self.batch, &columns)?)
    }

    fn detect_language(&mut self) -> Result<Token> {
        self.decode(&[self.rules.start()], 0)?;
        let best = self.rules.best_language(&self.logits);
        self.context.seq_rm(0, ..).map_err(DecodeError::from)?;
        Ok(best)
    }

    /// Decodes tokens and keeps the logits of the last one.
    fn decode(&mut self, tokens: &[Token], pos: usize) -> Result<()> {
        self.batch.clear();
        self.batch.push_prompt(tokens, pos, 0);
        self.context.decode(&self.batch)?;
        self.logits.clear();
        self.logits
            .extend_from_slice(self.context.logits(tokens.len() - 1).unwrap_or_default());
        Ok(())
    }

    /// Writes the text of the encoded window by greedy decoding, up to the end of the text.
    fn write(&mut self, prompt: &[Token], options: &TranscribeOptions) -> Result<Vec<Token>> {
        let most = self.model.max_positions().unwrap_or(self.audio.chunk);
        let mut tokens = Vec::new();
        self.decode(prompt, 0)?;
        while prompt.len() + tokens.len() < most && tokens.len() < most / 2 {
            self.rules.apply(&mut self.logits, &tokens, !options.without_timestamps);
            let token = rules::largest(&self.logits);
            if token == self.rules.end() {
                break;
            }
            tokens.push(token);
            let pos = prompt.len() + tokens.len() - 1;
            if pos + 1 < most {
                self.decode(&[token], pos)?;
            }
        }
        Ok(tokens)
    }
}
