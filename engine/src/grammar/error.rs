//! What can be wrong with a grammar.

/// Why a grammar is refused.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum GrammarError {
    /// It is not written as it should be.
    #[error("line {line}, column {column}: {message}")]
    Syntax {
        /// From 1 on.
        line: usize,
        /// In characters, from 1 on.
        column: usize,
        /// What is wrong.
        message: String,
    },
    /// A JSON schema that cannot be kept.
    #[error("at {place}: {message}")]
    Schema {
        /// A JSON pointer, such as `#/properties/name`.
        place: String,
        /// What is wrong.
        message: String,
    },
    /// It is longer than what is taken.
    #[error("it has {found} bytes, more than the {allowed} that are taken")]
    TooLong {
        /// Bytes it has.
        found: usize,
        /// Bytes it may have.
        allowed: usize,
    },
    /// It cannot be made into something that is fast enough, or it means nothing.
    #[error("{0}")]
    Refused(String),
    /// The model's vocabulary cannot be constrained.
    #[error("this model's vocabulary cannot be constrained: {0}")]
    Vocabulary(String),
}

impl GrammarError {
    /// An error at a byte of a text.
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
