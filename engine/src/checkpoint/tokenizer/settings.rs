//! `tokenizer_config.json`, `generation_config.json`, and chat templates.

use std::path::{Path, PathBuf};

use serde_json::Value as Json;

use super::{TokenType, Vocabulary};
use crate::checkpoint::CheckpointError;
use crate::checkpoint::config::{Config, parse_python_json};
use crate::checkpoint::shards::read_text;
use crate::gguf::Metadata;

/// Maximum length of the file in bytes.
const MAX_FILE: u64 = 16 << 20;

/// Settings in addition to a vocabulary.
pub struct Settings {
    tokenizer: Json,
    generation: Json,
}

/// Special tokens: name in `tokenizer_config.json`, name that replaces a missing one, and key. Encoders enclose a text
/// in CLS and SEP, which GGUF files name BOS and EOS.
const SPECIAL: [(&str, &str, &str); 7] = [
    ("bos_token", "cls_token", "bos_token_id"),
    ("eos_token", "sep_token", "eos_token_id"),
    ("unk_token", "", "unknown_token_id"),
    ("sep_token", "", "seperator_token_id"),
    ("pad_token", "", "padding_token_id"),
    ("cls_token", "", "cls_token_id"),
    ("mask_token", "", "mask_token_id"),
];

/// Recommended settings of sampling: name in `generation_config.json`, and key.
const SAMPLING: [(&str, &str); 5] = [
    ("temperature", "temp"),
    ("top_k", "top_k"),
    ("top_p", "top_p"),
    ("min_p", "min_p"),
    ("repetition_penalty", "penalty_repeat"),
];

fn read(path: PathBuf) -> Result<Json, CheckpointError> {
    if !path.exists() {
        return Ok(Json::Null);
    }
    let text = read_text(&path, MAX_FILE)?;
    parse_python_json(&text).map_err(|e| CheckpointError::file(&path, format!("invalid JSON: {e}")))
}

impl Settings {
    pub fn read(directory: &Path) -> Result<Settings, CheckpointError> {
        Ok(Settings {
            tokenizer: read(directory.join("tokenizer_config.json"))?,
            generation: read(directory.join("generation_config.json"))?,
        })
    }

    /// Returns `clean_up_tokenization_spaces`.
    pub fn clean_spaces(&self) -> bool {
        let flag = self.tokenizer.get("clean_up_tokenization_spaces");
        flag.and_then(Json::as_bool).unwrap_or(false)
    }

    /// Adds the tokens that only `tokenizer_config.json` lists.
    pub fn add_tokens(&self, v: &mut Vocabulary) {
        let added = self.tokenizer.get("added_tokens_decoder").and_then(Json::as_object);
        for (id, token) in added.into_iter().flatten() {
            let text = token.get("content").and_then(Json::as_str);
            let Some((id, text)) = id.parse::<usize>().ok().zip(text) else {
                continue;
            };
            // Ids beyond the vocabulary by more than a few tokens are a mistake of the file.
            let is_known = v.tokens.get(id).is_some_and(Option::is_some);
            if is_known || id > v.tokens.len() + (1 << 16) {
                continue;
            }
            let special = token.get("special").and_then(Json::as_bool).unwrap_or(true);
            let ty = if special {
                TokenType::Control
            } else {
                TokenType::UserDefined
            };
            v.place(id, text.to_owned(), ty);
        }
    }

    /// Writes the ids of special tokens, from the texts of the tokenizer or from ids of the configuration.
    pub fn special_ids(&self, v: &Vocabulary, config: &Config, metadata: &mut Metadata) {
        for (name, other, key) in SPECIAL {
            let given = [name, other].map(|name| self.tokenizer.get(name).filter(|t| !t.is_null()));
            let given = given[0].or(given[1]);
            let text = given.and_then(|t| t.as_str().or_else(|| t.get("content")?.as_str()));
            let id = text.and_then(|text| v.id(text)).or_else(|| {
                let id = |json: Option<&Json>| match json {
                    Some(Json::Array(list)) => list.first().and_then(Json::as_u64),
                    other => other.and_then(Json::as_u64),
                };
                let name = format!("{name}_id");
                let known = id(self.generation.get(&name)).or_else(|| id(config.get(&name)));
                known
                    .and_then(|id| usize::try_from(id).ok())
                    .filter(|&id| id < v.tokens.len())
            });
            if let Some(id) = id {
                metadata.insert(format!("tokenizer.ggml.{key}"), id as u32);
            }
        }
        let eos = metadata.get("tokenizer.ggml.eos_token_id").and_then(|v| v.as_u64());
        let ends = self.generation.get("eos_token_id").and_then(Json::as_array);
        let other = ends
            .into_iter()
            .flatten()
            .filter_map(Json::as_u64)
            .find(|id| Some(*id) != eos);
        if let Some(id) = other.filter(|&id| (id as usize) < v.tokens.len()) {
            metadata.insert("tokenizer.ggml.eot_token_id", id as u32);
        }
    }

    /// Writes the chat template and the recommended sampling.
    pub fn finish(&self, directory: &Path, metadata: &mut Metadata) -> Result<(), CheckpointError> {
        let file = directory.join("chat_template.jinja");
        if file.exists() {
            metadata.insert("tokenizer.chat_template", read_text(&file, MAX_FILE)?.as_str());
        } else {
            match self.tokenizer.get("chat_template") {
                Some(Json::String(text)) => {
                    metadata.insert("tokenizer.chat_template", text.as_str());
                }
                Some(Json::Array(list)) => {
                    for entry in list {
                        let (name, text) = (entry["name"].as_str(), entry["template"].as_str());
                        let Some((name, text)) = name.zip(text) else { continue };
                        let key = match name {
                            "default" => "tokenizer.chat_template".to_owned(),
                            name => format!("tokenizer.chat_template.{name}"),
                        };
                        metadata.insert(key, text);
                    }
                }
                _ => {}
            }
        }
        if self.generation.get("do_sample").and_then(Json::as_bool) == Some(true) {
            for (name, key) in SAMPLING {
                let key = format!("general.sampling.{key}");
                match self.generation.get(name) {
                    Some(Json::Number(n)) if name == "top_k" => {
                        if let Some(n) = n.as_u64().and_then(|n| u32::try_from(n).ok()) {
                            metadata.insert(key, n);
                        }
                    }
                    Some(Json::Number(n)) => {
                        if let Some(x) = n.as_f64() {
                            metadata.insert(key, x as f32);
                        }
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }
}
