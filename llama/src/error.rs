//! The error type of the crate.

use std::io;
use std::path::PathBuf;

use engine::adapter::AdapterError;
use engine::chat::ChatError;
use engine::context::{ContextError, DecodeError, MemoryError, SetAdaptersError};
use engine::grammar::GrammarError;
use engine::model::ModelError;
use engine::sample::SampleError;
use engine::speculate::{DraftModelError, MtpError};

#[cfg(feature = "hub")]
use crate::hub::HubError;
use crate::sounds::SoundError;

/// Result with an [`Error`] of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Error of any operation of this crate.
///
/// The variants are stable. Their payloads are error types of [`engine`](crate::engine), which may change.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The model name is invalid, or the download failed.
    #[cfg(feature = "hub")]
    #[error(transparent)]
    Hub(#[from] HubError),
    /// The model file is invalid, unsupported, or does not fit in memory.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The context cannot be created, for example because its memory cannot be allocated.
    #[error(transparent)]
    Context(#[from] ContextError),
    /// An adapter file is invalid or belongs to another model.
    #[error(transparent)]
    Adapter(#[from] AdapterError),
    /// Applying the adapters failed.
    #[error(transparent)]
    SetAdapters(#[from] SetAdaptersError),
    /// The chat template is missing or invalid, or rejected the messages.
    #[error(transparent)]
    Template(#[from] ChatError),
    /// The grammar, JSON schema, or regular expression is invalid.
    #[error(transparent)]
    Grammar(#[from] GrammarError),
    /// A sampling parameter is invalid, or no token can be sampled.
    #[error(transparent)]
    Sampler(#[from] SampleError),
    /// Running the model failed.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// Modifying the KV cache failed.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// A model cannot draft tokens, for example because its vocabulary differs.
    #[error(transparent)]
    DraftModel(#[from] DraftModelError),
    /// The multi-token prediction layers are missing or not supported.
    #[error(transparent)]
    Mtp(#[from] MtpError),
    /// A saved conversation cannot be read or written.
    #[error("{}: {reason}", file.display())]
    Conversation {
        /// Path of the file.
        file: PathBuf,
        /// Message of the failed operation.
        reason: String,
    },
    /// A projector, or an image or audio file, is invalid.
    #[error(transparent)]
    Media(#[from] SoundError),
    /// A question has images or audio, but the model was opened without a projector.
    #[error("the model reads text only; set a projector file with `ModelOptions::projector`")]
    NoProjector,
    /// The marks of images or audio in a message were changed.
    #[error("the images or audio of a message are unknown or were changed; remove the message")]
    ChangedMedia,
    /// Drafts are requested for a prompt with images.
    #[error("speculative decoding does not support images; disable drafts")]
    DraftsWithImages,
    /// The prompt has no tokens.
    #[error("the prompt is empty")]
    EmptyPrompt,
    /// The prompt exceeds the context.
    #[error(
        "the prompt has {n_prompt} tokens, but the context only {n_ctx}; use a larger context or enable context shift"
    )]
    PromptTooLong {
        /// Number of tokens in the prompt.
        n_prompt: usize,
        /// Capacity of the context in tokens.
        n_ctx: usize,
    },
    /// A stop string is empty.
    #[error("stop strings must not be empty: generation would stop immediately")]
    EmptyStop,
    /// An encoder-decoder model defines no token to start decoding with.
    #[error("the file defines no decoder start token (decoder_start_token_id or BOS)")]
    NoDecoderStart,
    /// The model transcribes audio.
    #[error("architecture {arch} transcribes audio and cannot continue text; use `llama transcribe`")]
    Speech {
        /// Architecture name.
        arch: &'static str,
    },
    /// The model is an encoder.
    #[error("architecture {arch} is an encoder and cannot generate text; use `Model::embed`")]
    Encoder {
        /// Architecture name.
        arch: &'static str,
    },
    /// The model produces no embeddings, or has no pooling for them.
    #[error("the model does not produce one embedding per text")]
    NoEmbeddings,
    /// A text to embed has no tokens.
    #[error("text {index} has no tokens")]
    EmptyText {
        /// Index of the text.
        index: usize,
    },
    /// A text to embed is longer than the model supports.
    #[error("text {index} has {n_tokens} tokens, but the model accepts at most {n_max}")]
    TextTooLong {
        /// Index of the text.
        index: usize,
        /// Number of tokens in the text.
        n_tokens: usize,
        /// Maximum number of tokens.
        n_max: usize,
    },
    /// A text cannot be embedded.
    #[error("cannot compute embeddings: {reason}")]
    Embedding {
        /// Error message of the engine.
        reason: String,
    },
    /// The operating system could not start a thread.
    #[error("cannot start a thread")]
    Thread(#[source] io::Error),
    /// The thread that compiles the grammar failed.
    #[error("cannot compile the grammar: the compiler thread failed")]
    CompilerThread,
}
