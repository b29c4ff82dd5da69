//! Errors and warnings that can occur when loading a vocabulary.

use std::fmt;

use super::VocabKind;
use crate::gguf::GgufError;

/// An error that can occur when building a vocabulary.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum VocabError {
    /// A metadata key is missing or has the wrong type.
    #[error(transparent)]
    Metadata(#[from] GgufError),
    /// The tokenizer model is unknown.
    #[error("key \"tokenizer.ggml.model\": expected one of {}, found \"{}\"", expected.join(", "), found.escape_debug())]
    UnknownModel { found: String, expected: Vec<&'static str> },
    /// The tokenizer model is known but not implemented.
    #[error("key \"tokenizer.ggml.model\": \"{model}\" ({kind}) is not supported")]
    UnsupportedModel { model: &'static str, kind: VocabKind },
    /// The pre-tokenizer is unknown. No default is used, because wrong splits yield tokens the model was not
    /// trained on.
    #[error("key \"tokenizer.ggml.pre\": unknown pre-tokenizer \"{}\"{}", found.escape_debug(), did_you_mean(close))]
    UnknownPreTokenizer {
        found: String,
        /// Similar known names, closest first.
        close: Vec<&'static str>,
    },
    /// A byte has no token in a vocabulary that requires one for every byte.
    #[error("key \"tokenizer.ggml.tokens\": missing token <0x{byte:02X}>; this tokenizer needs a token for every byte")]
    MissingByte { byte: u8 },
    /// The expressions of a pre-tokenizer do not compile.
    #[error("pre-tokenizer \"{name}\": {reason}")]
    PreTokenizer {
        name: String,
        /// Failing expression and the reason.
        reason: String,
    },
    /// More tokens than 31-bit token ids.
    #[error("key \"{key}\": expected at most {} tokens, found {found}", i32::MAX)]
    TooManyTokens { key: String, found: u64 },
    /// A per-token array has the wrong length.
    #[error("key \"{key}\": expected {expected} elements (one per token), found {found}")]
    WrongLength {
        key: &'static str,
        /// Number of tokens.
        expected: usize,
        /// Number of array elements.
        found: usize,
    },
    /// A token id is outside the vocabulary.
    #[error("key \"{key}\": expected a token id below {n_tokens}, found {found}")]
    TokenOutOfRange {
        key: &'static str,
        n_tokens: u32,
        found: i64,
    },
    /// The SentencePiece normalization table is invalid.
    #[error("key \"{key}\": {reason}")]
    MalformedCharsmap { key: &'static str, reason: String },
    /// A merge is not two parts separated by a space.
    #[error("key \"tokenizer.ggml.merges\": expected two parts separated by a space in merge {index}, found \"{}\"", found.escape_debug())]
    MalformedMerge {
        /// Index of the merge, from 0.
        index: usize,
        found: String,
    },
}

fn did_you_mean(close: &[&str]) -> String {
    if close.is_empty() {
        String::new()
    } else {
        format!("; similar names: {}", close.join(", "))
    }
}

/// Warning about a vocabulary that is usable despite suspicious metadata. The library never prints; the
/// application decides whether to show warnings.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum VocabWarning {
    /// The file names no pre-tokenizer. The default may differ from the one used in training.
    MissingPreTokenizer,
    /// Several tokens share a text; tokenization uses the first of them.
    DuplicateTokens {
        /// Number of tokens that repeat the text of an earlier token.
        n: usize,
        /// First token with a duplicate text.
        first: u32,
    },
    /// Some tokens have an empty text.
    EmptyTokens {
        /// Number of empty tokens.
        n: usize,
        /// First token with an empty text.
        first: u32,
    },
    /// A token with the text of a control token has a different type; it is treated as a control token.
    ControlLooking { token: u32, text: String },
    /// A BOS or EOS token is enabled but not defined.
    MissingSpecial {
        /// Metadata key that enables the token.
        key: &'static str,
    },
    /// The model requires a BOS token although the metadata disables it.
    BosForced,
}

impl VocabWarning {
    /// Returns true if the problem was corrected and has no effect on output quality.
    pub fn is_corrected(&self) -> bool {
        matches!(self, Self::ControlLooking { .. } | Self::BosForced)
    }
}

impl fmt::Display for VocabWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MissingPreTokenizer => f.write_str(
                "key \"tokenizer.ggml.pre\" is missing; using the default pre-tokenizer, which may reduce output quality",
            ),
            Self::DuplicateTokens { n, first } => {
                write!(f, "tokens that repeat the text of an earlier token: {n}; the first is token {first}")
            }
            Self::EmptyTokens { n, first } => {
                write!(f, "tokens with an empty text: {n}; the first is token {first}")
            }
            Self::ControlLooking { token, text } => {
                write!(f, "token {token} \"{}\" is not typed as a control token; treating it as one", text.escape_debug())
            }
            Self::MissingSpecial { key } => write!(f, "key \"{key}\" is true, but the token is not defined"),
            Self::BosForced => f.write_str(
                "key \"tokenizer.ggml.add_bos_token\" is false, but this tokenizer requires a BOS token; adding it",
            ),
        }
    }
}
