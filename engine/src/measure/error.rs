//! Reasons why a model cannot be measured.

use std::io;

use crate::context::DecodeError;
use crate::finite::NotFinite;

/// Reason why a model cannot be measured.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    /// The model does not predict a next token.
    #[error("architecture {arch} does not predict the next token, so that it has no perplexity")]
    NotGenerative {
        /// Name of the architecture.
        arch: &'static str,
    },
    /// The text does not fill one chunk.
    #[error(
        "the text is shorter than one chunk ({n_tokens} of {n_ctx} tokens); use a longer text or a smaller context"
    )]
    ShortText {
        /// Number of tokens of the text.
        n_tokens: usize,
        /// Tokens of a chunk.
        n_ctx: usize,
    },
    /// Decoding failed.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// A sequence was not decoded.
    #[error("a part of the text cannot be decoded: {0}")]
    Rejected(String),
    /// A logit is NaN or infinite.
    #[error("chunk {chunk}: {error}")]
    NotFinite {
        /// Number of the chunk, from 1.
        chunk: usize,
        /// Value and its position.
        error: NotFinite,
    },
    /// Two models or files have different vocabularies.
    #[error("the base has {base} tokens, but the model has {model}; both must have the same vocabulary")]
    OtherVocab {
        /// Tokens of the base.
        base: usize,
        /// Tokens of the model.
        model: usize,
    },
    /// Reading or writing failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A file of log-probabilities is damaged.
    #[error("not a valid file of log-probabilities: {0}")]
    InvalidBase(String),
    /// A file of tasks is damaged.
    #[error("task {number}: {problem}")]
    InvalidTask {
        /// 1-based number of the task.
        number: usize,
        /// Problem of the task.
        problem: String,
    },
}
