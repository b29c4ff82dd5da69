//! Model downloads by name: `user/repo:QUANT` on a model hub, or a short name.
//!
//! Downloads use the cache layout shared with other Hugging Face tools: `blobs` by SHA-256, `snapshots` with
//! file names, `refs` with commits. A blob gets its final name after its length and SHA-256 are verified.
//! Until then, its name ends in `.incomplete`, and the next run resumes the download.
//!
//! - `name`, `short_names`: model names
//! - `select`: selects the files of a repository
//! - `client`: requests, redirects, tokens, and retries
//! - `listing`: repository listings
//! - `transfer`, `blob`: download and verification of one file
//! - `cache`: cache directories, listing, and removal
//! - `address`: downloads from arbitrary URLs
//! - `progress`: events for progress bars

mod address;
mod blob;
mod cache;
mod client;
mod dirs;
mod error;
mod links;
mod listing;
mod name;
mod progress;
mod select;
mod short_names;
#[cfg(test)]
mod tests;
mod transfer;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use blob::Blob;
use client::{Client, RetryPolicy};
use progress::{Bar, Observer};

use crate::CancelHandle;
pub use cache::{Cache, Entry};
pub use error::{HubError, HubResult};
pub use name::Name;
pub use progress::{Event, Step};
pub use short_names::{SHORT_NAMES, ShortName};

/// Default hub, unless `HF_ENDPOINT` names a mirror.
const ENDPOINT: &str = "https://huggingface.co";

/// Number of parallel downloads.
const AT_ONCE: usize = 4;

/// Options of a [`Hub`].
#[must_use]
#[derive(Clone, Debug, Default)]
pub struct HubOptions {
    token: Option<String>,
    offline: bool,
    observer: Observer,
    cancel: CancelHandle,
}

impl HubOptions {
    /// Sets the token for gated models. The default is `HF_TOKEN`, or the stored login.
    pub fn token(mut self, token: impl Into<String>) -> HubOptions {
        self.token = Some(token.into());
        self
    }

    /// Uses only cached models and never accesses the network. The default is the value of `HF_HUB_OFFLINE`.
    pub fn offline(mut self, offline: bool) -> HubOptions {
        self.offline = offline;
        self
    }

    /// Calls `observer` with the events of downloads.
    pub fn observer(mut self, observer: impl Fn(Event<'_>) + Send + Sync + 'static) -> HubOptions {
        self.observer = Observer::new(observer);
        self
    }

    /// Sets the handle that cancels downloads.
    pub fn cancel(mut self, cancel: CancelHandle) -> HubOptions {
        self.cancel = cancel;
        self
    }
}

/// Returns the file at a path, or the file of the model with this name, which is downloaded if necessary.
///
/// # Errors
/// Returns a [`HubError`] if the name is unknown or the download fails.
pub fn resolve(given: &Path, options: &HubOptions) -> HubResult<PathBuf> {
    if given.exists() {
        return Ok(given.to_owned());
    }
    let text = given.to_str().unwrap_or_default();
    match Name::meant(text) {
        Some(name) => Hub::new(options.clone())?.model(&name),
        None if looks_like_a_name(text) => Err(HubError::invalid_name(text)),
        None => Ok(given.to_owned()),
    }
}

/// Returns true for a single word with a digit or colon that is not the name of a GGUF file.
fn looks_like_a_name(text: &str) -> bool {
    let is_of_names = |c: char| c.is_ascii_alphanumeric() || "._-:".contains(c);
    text.chars().all(is_of_names)
        && text.contains(|c: char| c.is_ascii_digit() || c == ':')
        && !text.to_ascii_lowercase().ends_with(".gguf")
}

/// A model hub with its local cache.
pub struct Hub {
    client: Client,
    cache: Cache,
    offline: bool,
    observer: Observer,
    cancel: CancelHandle,
}

impl Hub {
    /// Creates a hub from the options and the environment.
    ///
    /// # Errors
    /// Returns a [`HubError`] if `HF_ENDPOINT` or the token is invalid, or if the cache cannot be located.
    pub fn new(options: HubOptions) -> HubResult<Hub> {
        let is_set =
            |name: &str| std::env::var(name).is_ok_and(|v| matches!(v.as_str(), "1" | "true" | "TRUE" | "yes" | "on"));
        let endpoint = dirs::variable("HF_ENDPOINT").and_then(|v| v.into_os_string().into_string().ok());
        let token = options.token.or_else(cache::stored_token);
        Ok(Hub {
            client: Client::new(endpoint.as_deref().unwrap_or(ENDPOINT), token, RetryPolicy::default())?,
            cache: Cache::of_user()?,
            offline: options.offline || is_set("HF_HUB_OFFLINE"),
            observer: options.observer,
            cancel: options.cancel,
        })
    }

    /// Returns the model's first file, downloading the model unless it is cached.
    ///
    /// # Errors
    /// Returns a [`HubError`] if the hub does not have the model or the download fails.
    pub fn model(&self, name: &Name) -> HubResult<PathBuf> {
        match self.cache.find(name) {
            Some(entry) if self.verify(&entry)? => Ok(entry.path),
            _ if self.offline => Err(offline(name)),
            _ => self.fetch(name),
        }
    }

    /// Returns the projector of the model, downloading it unless it is cached. The model itself is not downloaded.
    ///
    /// # Errors
    /// Returns a [`HubError`] if the hub does not have the projector or the download fails.
    pub fn projector(&self, name: &Name) -> HubResult<PathBuf> {
        if let Some(entry) = self.cache.find(name)
            && let Some(projector) = &entry.projector
            && self.verify(&entry)?
        {
            return Ok(projector.clone());
        }
        if self.offline {
            return Err(offline(name));
        }
        let listing = listing::of(&self.client, name, &self.cancel)?;
        let paths: Vec<&str> = listing.files.iter().map(|f| f.path.as_str()).collect();
        // A repository can have projectors without models.
        let models = select::files(name, &paths);
        let first = models.map_or("", |models| models[0]);
        let missing = || HubError::new(format_args!("{name}: the repository has no projector (mmproj*.gguf)"));
        let projector = select::projector(first, &paths).ok_or_else(missing)?;
        self.model(&name.clone().with_file(projector))
    }

    /// Downloads the latest version of the model and of its projector, reusing cached files.
    ///
    /// # Errors
    /// Returns a [`HubError`] if the hub does not have the model or the download fails.
    pub fn pull(&self, name: &Name) -> HubResult<PathBuf> {
        if self.offline {
            return Err(offline(name));
        }
        self.fetch(name)
    }

    /// Returns the file of a URL, downloading it unless it is cached.
    ///
    /// # Errors
    /// Returns a [`HubError`] if the URL is invalid or the download fails.
    pub fn address(&self, url: &str) -> HubResult<PathBuf> {
        if let Some(name) = address::of_hub(&self.client, url) {
            return self.model(&name);
        }
        address::fetch(&self.client, url, self.offline, &self.observer, &self.cancel)
    }

    /// Verifies all files of a cached model. Files that are unchanged since the last verification are not
    /// read again.
    fn verify(&self, entry: &Entry) -> HubResult<bool> {
        for blob in &entry.blobs {
            if !blob.is_known() && !blob.verify(&self.verification(), &self.cancel)? {
                let name = entry.name.to_string();
                tracing::debug!(model = name, path = %blob.path.display(), "discarding a corrupt file of the cache");
                self.observer.send(Event::Corrupt { name: &name });
                blob.discard();
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn verification(&self) -> Bar {
        Bar::new(&self.observer, Step::Verify)
    }

    /// Checks with a single attempt that the hub has the model.
    ///
    /// # Errors
    /// Returns a [`HubError`] if the hub does not have the model or cannot be reached.
    pub fn has(&self, name: &Name) -> HubResult {
        let mut client = self.client.clone();
        client.retry.attempts = 1;
        listing::of(&client, name, &self.cancel).map(drop)
    }

    /// Returns the model's first file if it is cached.
    ///
    /// # Errors
    /// Returns a [`HubError`] if a cached file cannot be read.
    pub fn cached(&self, name: &Name) -> HubResult<Option<PathBuf>> {
        match self.cache.find(name) {
            Some(entry) if self.verify(&entry)? => Ok(Some(entry.path)),
            _ => Ok(None),
        }
    }

    fn fetch(&self, name: &Name) -> HubResult<PathBuf> {
        let listing = listing::of(&self.client, name, &self.cancel)?;
        let paths: Vec<&str> = listing.files.iter().map(|f| f.path.as_str()).collect();
        let mut chosen = select::files(name, &paths).map_err(HubError::new)?;
        if name.file.is_none() {
            chosen.extend(select::projector(chosen[0], &paths));
        }
        let files: Vec<_> = listing
            .files
            .iter()
            .filter(|f| chosen.contains(&f.path.as_str()))
            .collect();
        let blobs: Vec<Blob> = files.iter().map(|f| self.cache.blob(name, &f.sha256, f.len)).collect();
        let missing: Vec<usize> = (0..blobs.len()).filter(|&i| !blobs[i].is_known()).collect();
        let mut rest = Vec::new();
        for i in missing {
            let is_valid = blobs[i].is_there() && blobs[i].verify(&self.verification(), &self.cancel)?;
            if !is_valid {
                rest.push((&blobs[i], listing.url(&self.client, name, &files[i].path)));
            }
        }
        if !rest.is_empty() {
            let n_bytes = rest.iter().map(|(blob, _)| blob.len()).sum();
            let text = name.to_string();
            tracing::debug!(model = text, n_files = rest.len(), n_bytes, "downloading a model");
            self.observer.send(Event::Download { name: &text, n_bytes });
            self.fetch_all(&rest)?;
        }
        let mut first = None;
        for (file, blob) in files.iter().zip(&blobs) {
            let path = self.cache.link(name, &listing.commit, &file.path, blob)?;
            if file.path == chosen[0] {
                first = Some(path);
            }
        }
        self.cache.set_main(name, &listing.commit)?;
        first.ok_or_else(|| HubError::new(format_args!("{name}: no file to load")))
    }

    /// Downloads blobs in parallel with shared progress. The first failure cancels the remaining downloads.
    fn fetch_all(&self, blobs: &[(&Blob, String)]) -> HubResult {
        let bar = Bar::new(&self.observer, Step::Download);
        bar.set_length(blobs.iter().map(|(blob, _)| blob.len()).sum());
        let next = AtomicUsize::new(0);
        let failed = std::sync::Mutex::new(None);
        let work = || {
            loop {
                if failed.lock().is_ok_and(|f| f.is_some()) {
                    return;
                }
                let Some((blob, url)) = blobs.get(next.fetch_add(1, Ordering::Relaxed)) else {
                    return;
                };
                if let Err(failure) = blob.fetch(&self.client, url, &bar, &self.cancel)
                    && let Ok(mut failed) = failed.lock()
                {
                    failed.get_or_insert(failure);
                }
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..blobs.len().min(AT_ONCE) {
                scope.spawn(work);
            }
            work();
        });
        bar.finish_and_clear();
        match failed.into_inner() {
            Ok(Some(failure)) => Err(failure),
            _ => Ok(()),
        }
    }
}

/// Creates the error for a model that cannot be downloaded because offline mode is on.
fn offline(name: impl ToString) -> HubError {
    HubError::Offline { name: name.to_string() }
}
