//! Parameters for loading a model.

use std::path::Path;
use std::sync::Arc;

use crate::gguf::{Metadata, Value};
use crate::vocab::Vocab;

use super::placement::PlacementParams;
use super::{Medium, ModelError, Registered};

/// Progress callback: receives the loaded fraction from 0 to 1 and returns false to cancel.
pub type Progress = Arc<dyn Fn(f32) -> bool + Send + Sync>;

/// Callback for the vocabulary and the number of logits of a model.
pub type VocabHook = Arc<dyn Fn(&Arc<Vocab>, usize) + Send + Sync>;

/// Metadata key with the text of the architecture's declaration.
pub const DECLARATION_KEY: &str = "general.architecture.declaration";

/// Architecture to find for a file.
#[derive(Clone, Copy, Debug)]
pub struct WantedArch<'a> {
    /// Name of the architecture or encoder.
    pub name: &'a str,
    /// The file is the projector of an encoder.
    pub is_encoder: bool,
    /// Path of the file.
    pub path: &'a Path,
    /// Metadata of the file.
    pub metadata: &'a Metadata,
}

/// Finds the architecture of a file. Returns `Ok(None)` for an unknown name, and an error message for a declaration
/// that cannot be used.
pub type FindArch = Arc<dyn Fn(&WantedArch<'_>) -> Result<Option<Registered>, String> + Send + Sync>;

/// Parameters for loading a model.
#[derive(Clone)]
pub struct LoadParams {
    /// Architecture to load the file as; `None` uses `general.architecture`.
    pub arch: Option<String>,
    /// Architectures that take precedence over the registered ones.
    pub archs: Vec<Registered>,
    /// Finds the architecture instead of `arch`, `archs`, and the registered architectures.
    pub read_arch: Option<FindArch>,
    /// Finds architectures that are not registered.
    pub find_arch: Option<FindArch>,
    /// Medium of the encoder to load from a file with several encoders; `None` loads the first one.
    pub medium: Option<Medium>,
    /// Placement of the weights on devices.
    pub placement: PlacementParams,
    /// Map the file and use its pages where a device can read the weights unchanged. If false, all weights
    /// are copied, and the file can be changed after loading.
    pub mmap: bool,
    /// Lock the weights in physical memory. Failure is reported as a warning.
    pub mlock: bool,
    /// Load the first MTP layer, if the file has one and the architecture declares an MTP graph.
    pub mtp: bool,
    /// Whether to check all weights for NaN and infinity.
    pub check_tensors: bool,
    /// Metadata overrides.
    pub overrides: Vec<(String, Value)>,
    /// Progress callback.
    pub progress: Option<Progress>,
    /// Called as soon as the vocabulary is loaded, so that dependent work can overlap with loading the
    /// weights.
    pub on_vocab: Option<VocabHook>,
}

impl Default for LoadParams {
    fn default() -> LoadParams {
        LoadParams {
            arch: None,
            archs: Vec::new(),
            read_arch: None,
            find_arch: None,
            medium: None,
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
    /// Reports progress; returns an error if the callback cancels.
    pub(super) fn report(&self, path: &Path, done: f32) -> Result<(), ModelError> {
        match &self.progress {
            Some(go_on) if !go_on(done) => Err(ModelError::Cancelled { path: path.to_owned() }),
            _ => Ok(()),
        }
    }
}
