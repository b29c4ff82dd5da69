//! What is told of models: of those that are loaded in full, of others what their files say.

use std::collections::HashMap;
use std::fs::File;
use std::hash::{DefaultHasher, Hasher};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use engine::gguf::Gguf;
use serde_json::{Value as Json, json};

use super::{Card, Fleet, Loaded};
use crate::api::{ApiError, ApiResult};
use crate::ollama::{About, loaded_json, shown};
use crate::openai::model_json;

/// What headers of files say, as long as the files are as they were.
#[derive(Default)]
pub struct Headers(Mutex<HashMap<PathBuf, (State, Told)>>);

/// What is told of a model by its file.
#[derive(Clone)]
struct Told {
    /// As OpenAI's list has it.
    entry: Json,
    /// As Ollama's list has it.
    tag: Json,
}

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
            None => self.headers.told(card).entry,
        };
        let named = |card: &Card| {
            let mut entry = entry(card);
            entry["aliases"] = card.aliases.clone().into();
            entry
        };
        self.params.cards.iter().map(named).collect()
    }

    /// All models as Ollama's list has them.
    pub(super) fn tags(&self) -> Vec<Json> {
        self.params
            .cards
            .iter()
            .map(|card| self.headers.told(card).tag)
            .collect()
    }

    /// Those that are loaded, as Ollama's list of such has them.
    pub(super) fn running(&self) -> Vec<Json> {
        let of = |loaded: &Loaded| {
            let card = self.params.cards.iter().find(|card| card.name == loaded.name)?;
            Some(loaded_json(self.headers.told(card).tag, &loaded.app.served))
        };
        self.all().iter().filter_map(of).collect()
    }
}

impl Headers {
    /// What a file says of a model without its being loaded.
    fn told(&self, card: &Card) -> Told {
        let card = &*card.now();
        let state = std::fs::metadata(&card.path).map(|file| State {
            modified: file.modified().unwrap_or(UNIX_EPOCH),
            len: file.len(),
        });
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match (state, all.get(&card.path)) {
            (Ok(state), Some((known, told))) if *known == state => told.clone(),
            (Ok(state), _) => {
                let told = of_file(card, state.modified);
                all.insert(card.path.clone(), (state, told.clone()));
                told
            }
            (Err(_), _) => of_file(card, UNIX_EPOCH),
        }
    }
}

impl Fleet {
    /// What Ollama's interface shows of a model: what is loaded, or what the header of its file says.
    pub(super) fn shown(&self, name: &str) -> ApiResult<Json> {
        let card = self.card(name)?;
        if let Some((loaded, _busy)) = self.find(&card.name, false) {
            return Ok(shown(&loaded.app.served));
        }
        let card = card.now();
        let refused = |why: &dyn std::fmt::Display| {
            ApiError::unprocessable(format!("the model {:?} cannot be read: {why}", card.name))
        };
        if card.path.as_os_str().is_empty() {
            return Err(refused(
                &"it has not been fetched; POST /models/load does that, or a request for an answer",
            ));
        }
        let header = Gguf::open_header(&card.path).map_err(|e| refused(&e))?;
        let modified = std::fs::metadata(&card.path).and_then(|file| file.modified());
        let modified = seconds(modified.unwrap_or(UNIX_EPOCH));
        let about = About::of_header(&header, card.n_bytes, String::new(), modified);
        Ok(about.shown_by(&header.metadata))
    }
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

fn of_file(card: &Card, modified: SystemTime) -> Told {
    let modified = seconds(modified);
    let mut entry = json!({
        "id": card.name,
        "object": "model",
        "created": modified,
        "owned_by": "llama",
        "status": { "value": "unloaded" },
        "meta": { "size": card.n_bytes },
    });
    let plain = |entry: Json| {
        let tag = About {
            n_bytes: card.n_bytes,
            modified,
            ..About::default()
        };
        Told {
            entry,
            tag: tag.entry(&card.name),
        }
    };
    if card.path.as_os_str().is_empty() {
        entry["status"] = json!({ "value": "unloaded", "fetched": false });
        return plain(entry);
    }
    let header = match Gguf::open_header(&card.path) {
        Ok(header) => header,
        Err(error) => {
            entry["status"] = json!({ "value": "failed", "error": error.to_string() });
            return plain(entry);
        }
    };
    let arch = header.metadata.optional::<&str>("general.architecture").ok().flatten();
    let n_ctx = format!("{}.context_length", arch.unwrap_or_default());
    entry["meta"]["architecture"] = arch.into();
    entry["meta"]["n_ctx_train"] = header.metadata.optional::<u32>(&n_ctx).ok().flatten().into();
    entry["meta"]["has_chat_template"] = header.metadata.contains("tokenizer.chat_template").into();
    // A file that has just gone has no digest.
    let digest = digest(&card.path, header.data_offset()).unwrap_or_default();
    let tag = About::of_header(&header, card.n_bytes, digest, modified);
    Told {
        entry,
        tag: tag.entry(&card.name),
    }
}

/// A name for a model: of the header of its file, of the first weights, and of how long it is.
fn digest(path: &Path, n_header: usize) -> std::io::Result<String> {
    /// Bytes of weights that enter it.
    const SAMPLE: u64 = 1 << 20;
    let mut file = File::open(path)?;
    let mut hashes = [0; 2];
    for (hash, n) in hashes.iter_mut().zip([n_header as u64, SAMPLE]) {
        let mut bytes = Vec::new();
        (&mut file).take(n).read_to_end(&mut bytes)?;
        // Keys are fixed, unlike those of a map.
        let mut hasher = DefaultHasher::new();
        hasher.write(&bytes);
        *hash = hasher.finish();
    }
    Ok(format!(
        "{:016x}{:016x}{:016x}",
        hashes[0],
        hashes[1],
        file.metadata()?.len()
    ))
}
