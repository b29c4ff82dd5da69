//! Tokenizers of checkpoints: `tokenizer.json`, or `tokenizer.model` of SentencePiece, and their settings.

mod json;
mod pieces;
mod sentencepiece;
mod settings;

use std::path::Path;

use super::CheckpointError;
use super::config::Config;
use crate::gguf::{Array, Metadata, StringArray};

/// Type of a token, as in GGUF files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum TokenType {
    Normal = 1,
    Unknown = 2,
    Control = 3,
    UserDefined = 4,
    Unused = 5,
    Byte = 6,
}

/// A vocabulary, before it is written to the metadata.
#[derive(Default)]
struct Vocabulary {
    /// Value of `tokenizer.ggml.model`.
    model: &'static str,
    /// Value of `tokenizer.ggml.pre`.
    pre: Option<&'static str>,
    /// Text and type of each token; `None` for unused ids.
    tokens: Vec<Option<(String, TokenType)>>,
    /// Scores of the tokens; empty if the model has none.
    scores: Vec<f32>,
    merges: Vec<String>,
    /// Further keys, such as `add_space_prefix`.
    flags: Vec<(&'static str, bool)>,
    charsmap: Vec<u8>,
    /// Ids of special tokens that the tokenizer itself names.
    unk: Option<usize>,
    /// Tokens around a text: first and last.
    around: Option<(bool, bool)>,
}

impl Vocabulary {
    /// Returns the id of a token.
    fn id(&self, text: &str) -> Option<usize> {
        self.tokens
            .iter()
            .position(|t| t.as_ref().is_some_and(|(t, _)| t == text))
    }

    /// Places a token at its id.
    fn place(&mut self, id: usize, text: String, ty: TokenType) {
        if self.tokens.len() <= id {
            self.tokens.resize(id + 1, None);
        }
        self.tokens[id] = Some((text, ty));
    }
}

/// Writes the keys of a checkpoint's tokenizer. `rows` is the number of rows of the token embedding.
pub fn convert(directory: &Path, config: &Config, rows: usize, metadata: &mut Metadata) -> Result<(), CheckpointError> {
    let (json_path, model_path) = (directory.join("tokenizer.json"), directory.join("tokenizer.model"));
    let settings = settings::Settings::read(directory)?;
    let (path, mut vocabulary) = if json_path.exists() {
        (json_path.clone(), json::read(&json_path, settings.clean_spaces())?)
    } else if model_path.exists() {
        (model_path.clone(), sentencepiece::read(&model_path)?)
    } else {
        return Err(CheckpointError::tokenizer(
            directory,
            "the directory has neither `tokenizer.json` nor `tokenizer.model`",
        ));
    };
    settings.add_tokens(&mut vocabulary);
    let found = vocabulary.tokens.len();
    if found > rows {
        // Padding of a tokenizer may exceed the matrix; tokens with a meaning may not.
        return Err(CheckpointError::tokenizer(
            &path,
            format!("the tokenizer has {found} tokens, but the token embedding has {rows} rows"),
        ));
    }
    vocabulary.tokens.resize(rows, None);
    if !vocabulary.scores.is_empty() {
        vocabulary.scores.resize(rows, -1000.0);
    }
    settings.special_ids(&vocabulary, config, metadata);
    put(vocabulary, &path, metadata)?;
    settings.finish(directory, metadata)
}

fn put(v: Vocabulary, path: &Path, metadata: &mut Metadata) -> Result<(), CheckpointError> {
    let too_large = || CheckpointError::tokenizer(path, "the texts of the tokens exceed 4 GiB");
    metadata.insert("tokenizer.ggml.model", v.model);
    if let Some(pre) = v.pre {
        metadata.insert("tokenizer.ggml.pre", pre);
    }
    let mut texts = StringArray::default();
    let mut types: Vec<i32> = Vec::with_capacity(v.tokens.len());
    for (id, token) in v.tokens.into_iter().enumerate() {
        let (text, ty) = token.unwrap_or_else(|| (format!("[PAD{id}]"), TokenType::Unused));
        if !texts.push(text.as_bytes()) {
            return Err(too_large());
        }
        types.push(ty as i32);
    }
    metadata.insert("tokenizer.ggml.tokens", Array::String(texts));
    metadata.insert("tokenizer.ggml.token_type", Array::I32(types));
    if !v.scores.is_empty() {
        metadata.insert("tokenizer.ggml.scores", Array::F32(v.scores));
    }
    if !v.merges.is_empty() {
        let mut merges = StringArray::default();
        for merge in &v.merges {
            if !merges.push(merge.as_bytes()) {
                return Err(too_large());
            }
        }
        metadata.insert("tokenizer.ggml.merges", Array::String(merges));
    }
    if !v.charsmap.is_empty() {
        metadata.insert("tokenizer.ggml.precompiled_charsmap", Array::U8(v.charsmap));
    }
    for (key, value) in v.flags {
        metadata.insert(format!("tokenizer.ggml.{key}"), value);
    }
    if let Some((first, last)) = v.around {
        metadata.insert("tokenizer.ggml.add_bos_token", first);
        metadata.insert("tokenizer.ggml.add_eos_token", last);
    }
    if let Some(unk) = v.unk {
        metadata.insert("tokenizer.ggml.unknown_token_id", unk as u32);
    }
    Ok(())
}
