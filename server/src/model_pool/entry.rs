//! Configured models, and downloads of their files.

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use engine::gguf::Gguf;

/// A model in the configuration.
#[derive(Clone, Debug)]
pub struct ModelEntry {
    /// Model name.
    pub name: String,
    /// Additional names of the model.
    pub aliases: Vec<String>,
    /// Labels of the model.
    pub tags: Vec<String>,
    /// Path of the first file; empty until the model is downloaded.
    pub path: PathBuf,
    /// Total size of the files in bytes.
    pub n_bytes: u64,
    /// True if the model is never unloaded.
    pub is_pinned: bool,
    /// Downloads the files on first use; `None` if they are local.
    pub download: Option<Arc<LazyDownload>>,
}

impl ModelEntry {
    /// Returns the entry with the downloaded files, if the download has finished.
    pub(super) fn now(&self) -> Cow<'_, ModelEntry> {
        let found = self.download.as_ref().and_then(|download| download.found());
        found.map_or(Cow::Borrowed(self), |(path, n_bytes)| {
            Cow::Owned(ModelEntry {
                path,
                n_bytes,
                ..self.clone()
            })
        })
    }
}

/// Model files that are downloaded on first use.
pub struct LazyDownload {
    fetch: Box<Fetch>,
    found: Mutex<Option<(PathBuf, u64)>>,
    /// Lock that is taken during a download.
    load_lock: Mutex<()>,
}

/// Downloads the files of a model. Returns the path of the first file and the total size in bytes, or an
/// error message.
pub type Fetch = dyn Fn() -> Result<(PathBuf, u64), String> + Send + Sync;

/// Reads the header of a model file, or of the file that a checkpoint would be converted to, or returns an error
/// message.
pub type ReadHeader = dyn Fn(&ModelEntry) -> Result<Gguf, String> + Send + Sync;

impl LazyDownload {
    /// Creates a pending download.
    pub fn new(fetch: Box<Fetch>) -> LazyDownload {
        LazyDownload {
            fetch,
            found: Mutex::default(),
            load_lock: Mutex::default(),
        }
    }

    fn found(&self) -> Option<(PathBuf, u64)> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Downloads the files, or waits for a download in progress. A failed download is retried by the next
    /// call.
    pub(super) fn wait(&self) -> Result<(), String> {
        let _turn = self.load_lock.lock().unwrap_or_else(PoisonError::into_inner);
        if self.found().is_none() {
            let found = (self.fetch)()?;
            *self.found.lock().unwrap_or_else(PoisonError::into_inner) = Some(found);
        }
        Ok(())
    }
}

impl std::fmt::Debug for LazyDownload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LazyDownload")
            .field("found", &self.found)
            .finish_non_exhaustive()
    }
}
