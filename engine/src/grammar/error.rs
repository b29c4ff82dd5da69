//! Errors of compiling and applying grammars.

use std::time::Duration;

/// Error while compiling or applying a grammar.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum GrammarError {
    /// Invalid syntax.
    #[error("line {line}, column {column}: {message}")]
    Syntax {
        /// Line in the grammar source, starting at 1.
        line: usize,
        /// Column in characters, starting at 1.
        column: usize,
        /// Description of the error.
        message: String,
    },
    /// Unsupported or invalid JSON schema.
    #[error("at {place}: {message}")]
    Schema {
        /// JSON pointer to the invalid part, such as `#/properties/name`.
        place: String,
        /// Description of the error.
        message: String,
    },
    /// The grammar is longer than [`MAX_LEN`](super::MAX_LEN).
    #[error("grammar too long: {found} bytes, maximum {allowed}")]
    TooLong {
        /// Length of the grammar in bytes.
        found: usize,
        /// Maximum length in bytes.
        allowed: usize,
    },
    /// The grammar takes too long.
    #[error("{work} took longer than {} s; write the grammar without ambiguous or deeply repeated parts", .limit.as_secs())]
    TooSlow {
        /// Work that was cancelled.
        work: &'static str,
        /// Time limit of the work.
        limit: Duration,
    },
    /// The result of the compilation is no longer wanted.
    #[error("the compilation of the grammar was cancelled")]
    Abandoned,
    /// Other grammars are being compiled.
    #[error("{0} other grammars are being compiled; try again in a moment")]
    Busy(usize),
    /// The grammar matches nothing, exceeds a resource limit, or was rejected by llguidance.
    #[error("{0}")]
    Refused(String),
    /// The model's vocabulary does not support grammars.
    #[error("this model's vocabulary does not support grammars: {0}")]
    Vocabulary(String),
}

impl GrammarError {
    /// Creates a syntax error at a byte offset of `text`.
    pub(super) fn at(text: &str, at: usize, message: impl Into<String>) -> GrammarError {
        let before = text.get(..at).unwrap_or(text);
        let line_start = before.rfind('\n').map_or(0, |i| i + 1);
        GrammarError::Syntax {
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
            message: message.into(),
        }
    }
}
