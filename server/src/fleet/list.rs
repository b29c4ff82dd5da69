//! What is told of models: of those that are loaded in full, of others what their files say.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use engine::gguf::Gguf;
use serde_json::{Value as Json, json};

use super::{Card, Fleet};
use crate::openai::model_json;

/// What headers of files say, as long as the files are as they were.
#[derive(Default)]
pub struct Headers(Mutex<HashMap<PathBuf, (State, Json)>>);

/// What changes with a file: its time, and its length.
#[derive(Clone, Copy, PartialEq)]
struct State {
    modified: SystemTime,
    len: u64,
}

impl Fleet {
    /// All models. Reads headers of files that were not read yet.
    pub(super) fn list(&self) -> Vec<Json> {
        let loaded = self.all();
        let entry = |card: &Card| match loaded.iter().find(|loaded| loaded.name == card.name) {
            Some(loaded) => {
                let mut entry = model_json(&loaded.app.served);
                entry["status"] = json!({ "value": "loaded" });
                entry
            }
            None => self.headers.entry(card),
        };
        self.params.cards.iter().map(entry).collect()
    }
}

impl Headers {
    /// What a file says of a model without its being loaded.
    fn entry(&self, card: &Card) -> Json {
        let state = std::fs::metadata(&card.path).map(|file| State {
            modified: file.modified().unwrap_or(UNIX_EPOCH),
            len: file.len(),
        });
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match (state, all.get(&card.path)) {
            (Ok(state), Some((known, entry))) if *known == state => entry.clone(),
            (Ok(state), _) => {
                let entry = of_file(card, state.modified);
                all.insert(card.path.clone(), (state, entry.clone()));
                entry
            }
            (Err(_), _) => of_file(card, UNIX_EPOCH),
        }
    }
}

fn of_file(card: &Card, modified: SystemTime) -> Json {
    let created = modified.duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let mut entry = json!({
        "id": card.name,
        "object": "model",
        "created": created,
        "owned_by": "llama",
        "status": { "value": "unloaded" },
        "meta": { "size": card.n_bytes },
    });
    let header = match Gguf::open_header(&card.path) {
        Ok(header) => header,
        Err(error) => {
            entry["status"] = json!({ "value": "failed", "error": error.to_string() });
            return entry;
        }
    };
    let arch = header.metadata.optional::<&str>("general.architecture").ok().flatten();
    let n_ctx = format!("{}.context_length", arch.unwrap_or_default());
    entry["meta"]["architecture"] = arch.into();
    entry["meta"]["n_ctx_train"] = header.metadata.optional::<u32>(&n_ctx).ok().flatten().into();
    entry["meta"]["has_chat_template"] = header.metadata.contains("tokenizer.chat_template").into();
    entry
}
