//! How to load a model.

use std::path::Path;
use std::sync::Arc;

use crate::gguf::Value;
use crate::vocab::Vocab;

use super::ModelError;
use super::placement::PlacementParams;

/// Told how much is loaded, from 0 to 1; false cancels.
pub type Progress = Arc<dyn Fn(f32) -> bool + Send + Sync>;

/// Given the vocabulary and the number of logits of a model.
pub type VocabHook = Arc<dyn Fn(&Arc<Vocab>, usize) + Send + Sync>;

/// How to load a model.
#[derive(Clone)]
pub struct LoadParams {
    /// Name of the architecture to load the file as; `None` takes what the file says.
    pub arch: Option<String>,
    /// Where the weights go.
    pub placement: PlacementParams,
    /// Use the file's pages in place where a device reads weights as they are in the file. Else all weights are read into memory of their own, and
    /// the file is not in use once the model is loaded.
    pub mmap: bool,
    /// Keep the weights in memory for good. A failure is a warning.
    pub mlock: bool,
    /// Load the first layer of multi-token prediction too, if the architecture declares what such layers compute and the file has any.
    pub mtp: bool,
    /// Look at every weight for values that are no numbers.
    pub check_tensors: bool,
    /// Metadata that replaces the file's.
    pub overrides: Vec<(String, Value)>,
    /// Called while loading.
    pub progress: Option<Progress>,
    /// Called once the vocabulary is there, before any weight is, for what can be made of it meanwhile.
    pub on_vocab: Option<VocabHook>,
}

impl Default for LoadParams {
    fn default() -> LoadParams {
        LoadParams {
            arch: None,
            placement: PlacementParams::default(),
            mmap: true,
            mlock: false,
            mtp: false,
            check_tensors: false,
            overrides: Vec::new(),
            progress: None,
            on_vocab: None,
        }
    }
}

impl LoadParams {
    /// Reports how much is loaded; an error if the answer is to stop.
    pub(super) fn report(&self, path: &Path, done: f32) -> Result<(), ModelError> {
        match &self.progress {
            Some(go_on) if !go_on(done) => Err(ModelError::Cancelled { path: path.to_owned() }),
            _ => Ok(()),
        }
    }
}
