//! What can be wrong with a vocabulary, and what is odd about one that works.

use std::fmt;

use super::VocabKind;
use crate::gguf::GgufError;

/// Why a vocabulary cannot be built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VocabError {
    /// A key is missing or has the wrong type.
    #[error(transparent)]
    Metadata(#[from] GgufError),
    /// The tokenizer is not one that is known.
    #[error("key \"tokenizer.ggml.model\": expected one of {}, found \"{}\"", expected.join(", "), found.escape_debug())]
    UnknownModel {
        /// The value.
        found: String,
        /// The known values.
        expected: Vec<&'static str>,
    },
    /// The tokenizer is known, but this engine does not have it.
    #[error("key \"tokenizer.ggml.model\": \"{model}\" ({kind}) is not supported yet")]
    UnsupportedModel {
        /// The value.
        model: &'static str,
        /// What it stands for.
        kind: VocabKind,
    },
    /// A guess would give tokens that the model has never seen.
    #[error("key \"tokenizer.ggml.pre\": unknown pre-tokenizer \"{}\"{}", found.escape_debug(), did_you_mean(close))]
    UnknownPreTokenizer {
        /// The value.
        found: String,
        /// Known names that look like it, nearest first.
        close: Vec<&'static str>,
    },
    /// A byte that no token stands for, in a vocabulary that needs one for each.
    #[error("key \"tokenizer.ggml.tokens\": expected a token <0x{byte:02X}> for that byte, found none")]
    MissingByte {
        /// The byte.
        byte: u8,
    },
    /// A pre-tokenizer's expressions do not compile.
    #[error("pre-tokenizer \"{name}\": {reason}")]
    PreTokenizer {
        /// Its name.
        name: String,
        /// Which expression, and why.
        reason: String,
    },
    /// More tokens than there are token ids.
    #[error("key \"{key}\": expected at most {} tokens, found {found}", i32::MAX)]
    TooManyTokens {
        /// The key.
        key: String,
        /// The number of tokens.
        found: u64,
    },
    /// An array that should have one element for every token.
    #[error("key \"{key}\": expected {expected} elements, one for every token, found {found}")]
    WrongLength {
        /// The key.
        key: &'static str,
        /// The number of tokens.
        expected: usize,
        /// The number of elements.
        found: usize,
    },
    /// A token id that no token has.
    #[error("key \"{key}\": expected a token id below {n_tokens}, found {found}")]
    TokenOutOfRange {
        /// The key.
        key: &'static str,
        /// The number of tokens.
        n_tokens: u32,
        /// The id.
        found: i64,
    },
    /// A table of normalizations that is not one.
    #[error("key \"{key}\": {reason}")]
    MalformedCharsmap {
        /// The key.
        key: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// A merge that is not two parts with a space between them.
    #[error("key \"tokenizer.ggml.merges\": expected two parts separated by a space in merge {index}, found \"{}\"", found.escape_debug())]
    MalformedMerge {
        /// Number of the merge, from 0.
        index: usize,
        /// The merge.
        found: String,
    },
}

fn did_you_mean(close: &[&str]) -> String {
    if close.is_empty() {
        String::new()
    } else {
        format!("; close names are {}", close.join(", "))
    }
}

/// What is odd about a vocabulary that could be built all the same. The library does not print: who loads a model may
/// show these.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum VocabWarning {
    /// The file does not say how to cut text into words. The default may differ from what the model was trained with.
    MissingPreTokenizer,
    /// Tokens with equal texts: text becomes the first of them.
    DuplicateTokens {
        /// How many tokens have the text of an earlier one.
        n: usize,
        /// The first such token.
        first: u32,
    },
    /// Tokens without a text.
    EmptyTokens {
        /// How many.
        n: usize,
        /// The first of them.
        first: u32,
    },
    /// A token whose text marks it as a control token has another type; it is treated as a control token.
    ControlLooking {
        /// The token.
        token: u32,
        /// Its text.
        text: String,
    },
    /// A beginning or end token should be added, but there is none.
    MissingSpecial {
        /// The key that asks for it.
        key: &'static str,
    },
    /// The model needs a beginning-of-sequence token although the file says otherwise.
    BosForced,
}

impl VocabWarning {
    /// Nothing is worse for it: what the file says was put right.
    pub fn is_put_right(&self) -> bool {
        matches!(self, Self::ControlLooking { .. } | Self::BosForced)
    }
}

impl fmt::Display for VocabWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MissingPreTokenizer => f.write_str(
                "key \"tokenizer.ggml.pre\" is missing: the default pre-tokenizer is used, which can make answers worse",
            ),
            Self::DuplicateTokens { n, first } => {
                write!(f, "{n} tokens have the text of an earlier token, the first of them is {first}")
            }
            Self::EmptyTokens { n, first } => write!(f, "{n} tokens have no text, the first of them is {first}"),
            Self::ControlLooking { token, text } => {
                write!(f, "token {token} \"{}\" is treated as a control token in spite of its type", text.escape_debug())
            }
            Self::MissingSpecial { key } => write!(f, "key \"{key}\" is true, but there is no such token"),
            Self::BosForced => f.write_str(
                "key \"tokenizer.ggml.add_bos_token\" is false, but this tokenizer always adds a beginning of sequence",
            ),
        }
    }
}
