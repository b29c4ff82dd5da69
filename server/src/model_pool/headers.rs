//! Descriptions of models that are not loaded, from the headers of their files.

use std::collections::HashMap;
use std::fs::File;
use std::hash::{DefaultHasher, Hasher};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use engine::checkpoint::is_checkpoint;
use serde_json::{Value as Json, json};

use super::entry::{ModelEntry, ReadHeader};
use crate::ollama::ModelSummary;

/// Cache of model descriptions from file headers, valid while a file is unchanged.
#[derive(Default)]
pub struct Headers(Mutex<HashMap<PathBuf, (State, ModelInfo)>>);

/// Description of a model file.
#[derive(Clone)]
pub struct ModelInfo {
    /// Entry of OpenAI's model list.
    pub entry: Json,
    /// Entry of Ollama's model list.
    pub tag: Json,
}

/// State of a file; a change invalidates the cached description.
#[derive(Clone, Copy, PartialEq)]
struct State {
    modified: SystemTime,
    len: u64,
}

impl Headers {
    /// Returns the description of a model file, without loading the model.
    pub fn info(&self, model_entry: &ModelEntry, read_header: &ReadHeader) -> ModelInfo {
        let model_entry = &*model_entry.now();
        let state = state(&model_entry.path);
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match (state, all.get(&model_entry.path)) {
            (Ok(state), Some((known, info))) if *known == state => info.clone(),
            (Ok(state), _) => {
                let info = of_file(model_entry, read_header, state.modified);
                all.insert(model_entry.path.clone(), (state, info.clone()));
                info
            }
            (Err(_), _) => of_file(model_entry, read_header, UNIX_EPOCH),
        }
    }
}

/// Returns the state of a model file, or the latest time and the total size of the files of a checkpoint.
fn state(path: &Path) -> std::io::Result<State> {
    let of = |path: &Path| {
        let file = std::fs::metadata(path)?;
        let modified = file.modified().unwrap_or(UNIX_EPOCH);
        std::io::Result::Ok((
            file.is_file(),
            State {
                modified,
                len: file.len(),
            },
        ))
    };
    let (_, mut state) = of(path)?;
    if is_checkpoint(path) {
        state.len = 0;
        for entry in std::fs::read_dir(path)?.flatten() {
            if let Ok((true, file)) = of(&entry.path()) {
                state.modified = state.modified.max(file.modified);
                state.len = state.len.wrapping_add(file.len);
            }
        }
    }
    Ok(state)
}

/// Returns the Unix time in seconds.
pub fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

fn of_file(model_entry: &ModelEntry, read_header: &ReadHeader, modified: SystemTime) -> ModelInfo {
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
    let header = match read_header(model_entry) {
        Ok(header) => header,
        Err(error) => {
            entry["status"] = json!({ "value": "failed", "error": error });
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

/// Number of weight bytes that are hashed.
const SAMPLE: u64 = 1 << 20;

/// Computes an identifier from the header, the start of the weights, and the size of the model.
fn digest(path: &Path, n_header: usize) -> std::io::Result<String> {
    if is_checkpoint(path) {
        return digest_of_checkpoint(path);
    }
    let mut file = File::open(path)?;
    let header = hash(&mut file, n_header as u64)?;
    let weights = hash(&mut file, SAMPLE)?;
    Ok(format!("{header:016x}{weights:016x}{:016x}", file.metadata()?.len()))
}

/// Computes an identifier from the configuration, the names and starts of the files with weights, and their size.
fn digest_of_checkpoint(path: &Path) -> std::io::Result<String> {
    let config = hash(&mut File::open(path.join("config.json"))?, SAMPLE)?;
    let entries: std::io::Result<Vec<_>> = std::fs::read_dir(path)?.map(|entry| Ok(entry?.path())).collect();
    let mut files = entries?;
    files.retain(|file| file.extension().is_some_and(|e| e == "safetensors"));
    files.sort();
    let (mut hasher, mut len) = (DefaultHasher::new(), 0u64);
    for path in files {
        let mut file = File::open(&path)?;
        hasher.write(path.file_name().unwrap_or_default().as_encoded_bytes());
        hasher.write_u64(hash(&mut file, SAMPLE)?);
        len = len.wrapping_add(file.metadata()?.len());
    }
    Ok(format!("{config:016x}{:016x}{len:016x}", hasher.finish()))
}

/// Hashes the next `n` bytes of a file.
fn hash(file: &mut File, n: u64) -> std::io::Result<u64> {
    let mut bytes = Vec::new();
    file.take(n).read_to_end(&mut bytes)?;
    // `DefaultHasher::new` uses fixed keys, unlike a `HashMap`'s hasher.
    let mut hasher = DefaultHasher::new();
    hasher.write(&bytes);
    Ok(hasher.finish())
}
