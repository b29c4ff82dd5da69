//! Model lists: full details of loaded models, and header data of the other files.

use std::time::UNIX_EPOCH;

use serde_json::{Value as Json, json};

use super::entry::ModelEntry;
use super::headers::{ModelInfo, seconds};
use super::pool::{Loaded, ModelPool};
use crate::api::{ApiError, ApiResult};
use crate::ollama::{ModelSummary, describe, loaded_json};
use crate::openai::model_json;

impl ModelPool {
    fn info(&self, model_entry: &ModelEntry) -> ModelInfo {
        self.headers.info(model_entry, &*self.read_header)
    }

    /// Returns OpenAI's model list. Reads the headers of new or changed files.
    pub(super) fn list(&self) -> Vec<Json> {
        let loaded = self.all();
        let entry = |model_entry: &ModelEntry| match loaded.iter().find(|loaded| loaded.name == model_entry.name) {
            Some(loaded) => {
                let mut entry = model_json(&loaded.app.service);
                entry["status"] = json!({ "value": "loaded" });
                entry
            }
            None => self.info(model_entry).entry,
        };
        let named = |model_entry: &ModelEntry| {
            let mut entry = entry(model_entry);
            entry["aliases"] = model_entry.aliases.clone().into();
            entry["tags"] = model_entry.tags.clone().into();
            entry
        };
        self.params.models.iter().map(named).collect()
    }

    /// Returns Ollama's model list.
    pub(super) fn tags(&self) -> Vec<Json> {
        self.params
            .models
            .iter()
            .map(|model_entry| self.info(model_entry).tag)
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
            Some(loaded_json(self.info(model_entry).tag, &loaded.app.service))
        };
        self.all().iter().filter_map(of).collect()
    }

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
        let header = (self.read_header)(&model_entry).map_err(|e| refused(&e))?;
        let modified = std::fs::metadata(&model_entry.path).and_then(|file| file.modified());
        let modified = seconds(modified.unwrap_or(UNIX_EPOCH));
        let about = ModelSummary::of_header(&header, model_entry.n_bytes, String::new(), modified);
        Ok(about.describe_file(&header.metadata))
    }
}
