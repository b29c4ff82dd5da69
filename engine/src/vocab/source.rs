//! Tokenizer metadata as plain data, so that tokenizers are independent of the file format.

use std::borrow::Cow;

use super::VocabError;
use super::roles::{SPECIALS, Special};
use crate::gguf::{Array, FromValue, Gguf, StringArray, Value};

/// Metadata keys used in more than one module.
pub(super) mod key {
    pub const TOKENS: &str = "tokenizer.ggml.tokens";
    pub const SCORES: &str = "tokenizer.ggml.scores";
    pub const TOKEN_TYPES: &str = "tokenizer.ggml.token_type";
    pub const MERGES: &str = "tokenizer.ggml.merges";
    pub const ADD_BOS: &str = "tokenizer.ggml.add_bos_token";
    pub const ADD_EOS: &str = "tokenizer.ggml.add_eos_token";
    pub const CHARSMAP: &str = "tokenizer.ggml.precompiled_charsmap";
}

/// Unvalidated metadata that a vocabulary is built from.
#[derive(Debug, Clone, Default)]
pub struct VocabSource<'a> {
    /// `tokenizer.ggml.model`.
    pub model: &'a str,
    /// `tokenizer.ggml.pre`.
    pub pre: Option<&'a str>,
    /// `{arch}.vocab_size`, for models without a vocabulary.
    pub vocab_size: Option<u64>,
    /// `tokenizer.ggml.tokens`: the texts of the tokens.
    pub tokens: Option<Cow<'a, StringArray>>,
    /// `tokenizer.ggml.scores`.
    pub scores: Option<Cow<'a, [f32]>>,
    /// `tokenizer.ggml.token_type`, see [`TokenAttr::from_type`](super::TokenAttr::from_type).
    pub token_types: Option<Cow<'a, [i32]>>,
    /// `tokenizer.ggml.merges`: two parts separated by a space, highest priority first.
    pub merges: Option<Cow<'a, StringArray>>,
    /// Special tokens as (metadata key, role, token id); later entries take precedence.
    pub special_ids: Vec<(&'static str, Special, i64)>,
    /// `tokenizer.ggml.add_bos_token`.
    pub add_bos: Option<bool>,
    /// `tokenizer.ggml.add_eos_token`.
    pub add_eos: Option<bool>,
    /// `tokenizer.ggml.add_sep_token`.
    pub add_sep: Option<bool>,
    /// `tokenizer.ggml.add_space_prefix`.
    pub add_space_prefix: Option<bool>,
    /// `tokenizer.ggml.remove_extra_whitespaces` (unigram vocabularies).
    pub remove_extra_whitespaces: Option<bool>,
    /// `tokenizer.ggml.precompiled_charsmap`: SentencePiece's normalization (unigram vocabularies).
    pub charsmap: Option<Cow<'a, [u8]>>,
    /// `tokenizer.ggml.normalizer.lowercase` (WordPiece vocabularies).
    pub lowercase: Option<bool>,
    /// `tokenizer.ggml.normalizer.strip_accents` (WordPiece vocabularies).
    pub strip_accents: Option<bool>,
    /// `tokenizer.ggml.suppress_tokens`.
    pub suppress_tokens: Cow<'a, [i32]>,
    /// `general.name`, which selects a few model-specific options.
    pub general_name: &'a str,
    /// `general.architecture`.
    pub architecture: &'a str,
}

/// Byte array; some files store the bytes as signed integers.
struct Bytes<'a>(Cow<'a, [u8]>);

impl<'a> FromValue<'a> for Bytes<'a> {
    const EXPECTED: &'static str = "an array of bytes";

    fn from_value(value: &'a Value) -> Option<Self> {
        match value.as_array()? {
            Array::U8(bytes) => Some(Bytes(Cow::Borrowed(bytes))),
            Array::I8(bytes) => Some(Bytes(Cow::Borrowed(bytemuck::cast_slice(bytes)))),
            _ => None,
        }
    }
}

impl<'a> VocabSource<'a> {
    /// Reads all tokenizer keys from the metadata of a GGUF file.
    ///
    /// # Errors
    /// Returns a [`VocabError`] if a key is missing or has a wrong type.
    pub fn from_gguf(gguf: &'a Gguf) -> Result<Self, VocabError> {
        fn get<'a, T: FromValue<'a>>(gguf: &'a Gguf, key: &str) -> Result<Option<T>, VocabError> {
            Ok(gguf.optional(key)?)
        }
        let architecture = get::<&str>(gguf, "general.architecture")?.unwrap_or_default();
        let mut special_ids = Vec::new();
        for (key, special) in SPECIALS
            .iter()
            .flat_map(|row| row.keys.iter().map(|key| (*key, row.special)))
        {
            if let Some(id) = get::<i64>(gguf, key)? {
                special_ids.push((key, special, id));
            }
        }
        Ok(Self {
            model: gguf.require("tokenizer.ggml.model")?,
            pre: get(gguf, "tokenizer.ggml.pre")?,
            vocab_size: get(gguf, &format!("{architecture}.vocab_size"))?,
            tokens: get::<&StringArray>(gguf, key::TOKENS)?.map(Cow::Borrowed),
            scores: get(gguf, key::SCORES)?,
            token_types: get(gguf, key::TOKEN_TYPES)?,
            merges: get::<&StringArray>(gguf, key::MERGES)?.map(Cow::Borrowed),
            special_ids,
            add_bos: get(gguf, key::ADD_BOS)?,
            add_eos: get(gguf, key::ADD_EOS)?,
            add_sep: get(gguf, "tokenizer.ggml.add_sep_token")?,
            add_space_prefix: get(gguf, "tokenizer.ggml.add_space_prefix")?,
            remove_extra_whitespaces: get(gguf, "tokenizer.ggml.remove_extra_whitespaces")?,
            charsmap: get::<Bytes>(gguf, key::CHARSMAP)?.map(|bytes| bytes.0),
            lowercase: get(gguf, "tokenizer.ggml.normalizer.lowercase")?,
            strip_accents: get(gguf, "tokenizer.ggml.normalizer.strip_accents")?,
            suppress_tokens: get(gguf, "tokenizer.ggml.suppress_tokens")?.unwrap_or_default(),
            // Only searched for a few keywords, so an invalid name is treated as empty.
            general_name: gguf.optional("general.name").ok().flatten().unwrap_or_default(),
            architecture,
        })
    }
}
