//! Model lists: full details of loaded models, and header data of the other files.

use std::collections::HashMap;
use std::fs::File;
use std::hash::{DefaultHasher, Hasher};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use engine::gguf::Gguf;
use serde_json::{Value as Json, json};

use super::{Loaded, ModelEntry, ModelPool};
use crate::api::{ApiError, ApiResult};
use crate::ollama::{ModelSummary, describe, loaded_json};
use crate::openai::model_json;

/// Cache of model descriptions from file headers, valid while a file is unchanged.
#[derive(Default)]
pub struct Headers(Mutex<HashMap<PathBuf, (State, ModelInfo)>>);

/// Description of a model file.
#[derive(Clone)]
struct ModelInfo {
    /// Entry of OpenAI's model list.
    entry: Json,
    /// Entry of Ollama's model list.
    tag: Json,
}

/// State of a file; a change invalidates the cached description.
#[derive(Clone, Copy, PartialEq)]
struct State {
    modified: SystemTime,
    len: u64,
}

impl ModelPool {
    /// Returns OpenAI's model list. Reads the headers of new or changed files.
    pub(super) fn list(&self) -> Vec<Json> {
        let loaded = self.all();
        let entry = |model_entry: &ModelEntry| match loaded.iter().find(|loaded| loaded.name == model_entry.name) {
            Some(loaded) => {
                let mut entry = model_json(&loaded.app.service);
                entry["status"] = json!({ "value": "loaded" });
                entry
            }
            None => self.headers.info(model_entry).entry,
        };
        let named = |model_entry: &ModelEntry| {
            let mut entry = entry(model_entry);
            entry["aliases"] = model_entry.aliases.clone().into();
            entry
        };
        self.params.models.iter().map(named).collect()
    }

    /// Returns Ollama's model list.
    pub(super) fn tags(&self) -> Vec<Json> {
        self.params
            .models
            .iter()
            .map(|model_entry| self.headers.info(model_entry).tag)
            .collect()
    }

    /// Returns Ollama's list of loaded models.
    pub(super) fn running(&self) -> Vec<Json> {
        let of = |loaded: &Loaded| {
            let model_entry = self
                .params
                .models
                .iter()
                .find(|model_entry| model_entry.name == loaded.name)?;
            Some(loaded_json(self.headers.info(model_entry).tag, &loaded.app.service))
        };
        self.all().iter().filter_map(of).collect()
    }
}

impl Headers {
    /// Returns the description of a model file, without loading the model.
    fn info(&self, model_entry: &ModelEntry) -> ModelInfo {
        let model_entry = &*model_entry.now();
        let state = std::fs::metadata(&model_entry.path).map(|file| State {
            modified: file.modified().unwrap_or(UNIX_EPOCH),
            len: file.len(),
        });
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match (state, all.get(&model_entry.path)) {
            (Ok(state), Some((known, info))) if *known == state => info.clone(),
            (Ok(state), _) => {
                let info = of_file(model_entry, state.modified);
                all.insert(model_entry.path.clone(), (state, info.clone()));
                info
            }
            (Err(_), _) => of_file(model_entry, UNIX_EPOCH),
        }
    }
}

impl ModelPool {
    /// Returns Ollama's details of a model, from the loaded model or its file header.
    pub(super) fn details(&self, name: &str) -> ApiResult<Json> {
        let model_entry = self.model_entry(name)?;
        if let Some((loaded, _busy)) = self.find(&model_entry.name, false) {
            return Ok(describe(&loaded.app.service));
        }
        let model_entry = model_entry.now();
        let refused = |why: &dyn std::fmt::Display| {
            ApiError::unprocessable(format!("cannot read the model {:?}: {why}", model_entry.name))
        };
        if model_entry.path.as_os_str().is_empty() {
            return Err(refused(
                &"not downloaded yet; POST /models/load downloads it, as does the first completion request",
            ));
        }
        let header = Gguf::open_header(&model_entry.path).map_err(|e| refused(&e))?;
        let modified = std::fs::metadata(&model_entry.path).and_then(|file| file.modified());
        let modified = seconds(modified.unwrap_or(UNIX_EPOCH));
        let about = ModelSummary::of_header(&header, model_entry.n_bytes, String::new(), modified);
        Ok(about.describe_file(&header.metadata))
    }
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

fn of_file(model_entry: &ModelEntry, modified: SystemTime) -> ModelInfo {
    let modified = seconds(modified);
    let mut entry = json!({
        "id": model_entry.name,
        "object": "model",
        "created": modified,
        "owned_by": "llama",
        "status": { "value": "unloaded" },
        "meta": { "size": model_entry.n_bytes },
    });
    let plain = |entry: Json| {
        let tag = ModelSummary {
            n_bytes: model_entry.n_bytes,
            modified,
            ..ModelSummary::default()
        };
        ModelInfo {
            entry,
            tag: tag.entry(&model_entry.name),
        }
    };
    if model_entry.path.as_os_str().is_empty() {
        entry["status"] = json!({ "value": "unloaded", "fetched": false });
        return plain(entry);
    }
    let header = match Gguf::open_header(&model_entry.path) {
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
    // The file may have been deleted since its header was read.
    let digest = digest(&model_entry.path, header.data_offset()).unwrap_or_default();
    let tag = ModelSummary::of_header(&header, model_entry.n_bytes, digest, modified);
    ModelInfo {
        entry,
        tag: tag.entry(&model_entry.name),
    }
}

/// Computes an identifier from the file header, the start of the weights and the file size.
fn digest(path: &Path, n_header: usize) -> std::io::Result<String> {
    /// Number of weight bytes that are hashed.
    const SAMPLE: u64 = 1 << 20;
    let mut file = File::open(path)?;
    let mut hashes = [0; 2];
    for (hash, n) in hashes.iter_mut().zip([n_header as u64, SAMPLE]) {
        let mut bytes = Vec::new();
        (&mut file).take(n).read_to_end(&mut bytes)?;
        // `DefaultHasher::new` uses fixed keys, unlike a `HashMap`'s hasher.
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
