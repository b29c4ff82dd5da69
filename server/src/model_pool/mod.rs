//! Serves several models behind one address. A request is dispatched by its model name, and a model is loaded
//! on first use. If the limits are exceeded, the least recently used idle model is unloaded.

mod list;
mod routes;

pub use routes::POOL_ROUTES;

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::Router;
use axum::http::StatusCode;
use tokio::sync::OwnedMutexGuard;

use self::list::Headers;
use crate::api::{ApiError, ApiResult};
use crate::http::App;
use crate::service::ModelService;

/// A model in the configuration.
#[derive(Clone, Debug)]
pub struct ModelEntry {
    /// Model name.
    pub name: String,
    /// Additional names of the model.
    pub aliases: Vec<String>,
    /// Path of the first file; empty until the model is downloaded.
    pub path: PathBuf,
    /// Total size of the files in bytes.
    pub n_bytes: u64,
    /// Whether the model is never unloaded.
    pub is_pinned: bool,
    /// Downloads the files on first use; `None` if they are local.
    pub download: Option<Arc<LazyDownload>>,
}

impl ModelEntry {
    /// Returns the entry with the downloaded files, if the download has finished.
    fn now(&self) -> Cow<'_, ModelEntry> {
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
    fn wait(&self) -> Result<(), String> {
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
        f.debug_struct("Later")
            .field("found", &self.found)
            .finish_non_exhaustive()
    }
}

/// Loads a model, or returns an error message.
pub type Load = dyn Fn(&ModelEntry) -> Result<ModelService, String> + Send + Sync;

/// Settings for serving several models.
pub struct ModelPoolParams {
    /// Configured models.
    pub models: Vec<ModelEntry>,
    /// Maximum number of loaded models.
    pub max_loaded: usize,
    /// Maximum total file size of loaded models in bytes. A larger model is loaded alone.
    pub max_bytes: u64,
    /// Load a model on its first completion request; otherwise only `/models/load` does.
    pub autoload: bool,
    /// Build identification, such as the version.
    pub build: String,
}

/// Several models and the state of the loaded ones.
pub struct ModelPool {
    params: ModelPoolParams,
    load: Box<Load>,
    loaded: Mutex<Vec<Loaded>>,
    /// Locked during a load; models are loaded one at a time.
    load_lock: Arc<tokio::sync::Mutex<()>>,
    clock: AtomicU64,
    is_closed: AtomicBool,
    headers: Headers,
}

#[derive(Clone)]
struct Loaded {
    name: String,
    app: Arc<App>,
    routes: Router,
    used: u64,
    n_bytes: u64,
    n_in_flight: Arc<AtomicUsize>,
}

/// Counts a request as in flight until its response ends.
struct InFlightGuard(Arc<AtomicUsize>);

impl InFlightGuard {
    fn new(n: &Arc<AtomicUsize>) -> InFlightGuard {
        n.fetch_add(1, Ordering::AcqRel);
        InFlightGuard(n.clone())
    }
}

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl ModelPool {
    /// Creates the pool without loading a model.
    pub fn new(params: ModelPoolParams, load: Box<Load>) -> Arc<ModelPool> {
        Arc::new(ModelPool {
            params,
            load,
            loaded: Mutex::default(),
            load_lock: Arc::default(),
            clock: AtomicU64::new(0),
            is_closed: AtomicBool::new(false),
            headers: Headers::default(),
        })
    }

    /// Returns the number of configured models.
    pub fn n_models(&self) -> usize {
        self.params.models.len()
    }

    /// Loads a model ahead of its first request.
    ///
    /// # Errors
    ///
    /// Returns an error if no model has this name, or if loading fails.
    pub async fn preload(self: &Arc<ModelPool>, name: &str) -> ApiResult<()> {
        self.get(name, true).await.map(drop)
    }

    /// Unloads a model. Returns false if it is not loaded.
    async fn unload(&self, name: &str) -> ApiResult<bool> {
        let model_entry = self.model_entry(name)?;
        let unloaded = {
            let mut all = self.lock();
            let Some(i) = all.iter().position(|loaded| loaded.name == model_entry.name) else {
                return Ok(false);
            };
            if all[i].n_in_flight.load(Ordering::Acquire) > 0 {
                return Err(ApiError {
                    status: StatusCode::CONFLICT,
                    retry_after: Some(5),
                    ..ApiError::invalid(format!("the model {:?} is in use", model_entry.name))
                });
            }
            all.swap_remove(i)
        };
        drop_blocking(unloaded).await;
        Ok(true)
    }

    /// Stops accepting requests and loading models.
    pub fn close(&self) {
        // Set under the lock, so that a load that finishes later sees the flag.
        let all = self.lock();
        self.is_closed.store(true, Ordering::Release);
        all.iter().for_each(|loaded| loaded.app.service.scheduler.close());
    }

    fn is_open(&self) -> bool {
        !self.is_closed.load(Ordering::Acquire)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Loaded>> {
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn all(&self) -> Vec<Loaded> {
        self.lock().clone()
    }

    /// Returns a loaded model. With `is_use`, marks it as most recently used.
    fn find(&self, name: &str, is_use: bool) -> Option<(Loaded, InFlightGuard)> {
        let mut all = self.lock();
        let found = all.iter_mut().find(|loaded| loaded.name == name)?;
        if is_use {
            found.used = self.clock.fetch_add(1, Ordering::Relaxed);
        }
        // Counted under the lock, so that the model cannot be unloaded as idle in between.
        Some((found.clone(), InFlightGuard::new(&found.n_in_flight)))
    }

    /// Returns the model with this name or alias.
    fn model_entry(&self, name: &str) -> ApiResult<&ModelEntry> {
        let models = &self.params.models;
        let by_alias = || {
            models
                .iter()
                .find(|model_entry| model_entry.aliases.iter().any(|alias| alias == name))
        };
        models
            .iter()
            .find(|model_entry| model_entry.name == name)
            .or_else(by_alias)
            .ok_or_else(|| {
                let known: Vec<&str> = models
                    .iter()
                    .map(|model_entry| model_entry.name.as_str())
                    .take(20)
                    .collect();
                let more = if models.len() > known.len() { " and more" } else { "" };
                let name: String = name.chars().take(128).collect();
                let message = format!("unknown model {name:?}; available: {}{more}", known.join(", "));
                ApiError {
                    code: Some("model_not_found"),
                    param: Some("model".to_owned()),
                    ..ApiError::not_found(message)
                }
            })
    }

    /// Returns a model. Loads it if necessary and `may_load` is true.
    async fn get(self: &Arc<ModelPool>, name: &str, may_load: bool) -> ApiResult<(Loaded, InFlightGuard)> {
        let model_entry = self.model_entry(name)?.clone();
        if let Some(found) = self.find(&model_entry.name, true) {
            return Ok(found);
        }
        if !may_load {
            return Err(not_loaded(&model_entry.name, "load it with POST /models/load"));
        }
        let model_entry = self.downloaded(model_entry).await?;
        let load_lock = self.load_lock.clone().lock_owned().await;
        if let Some(found) = self.find(&model_entry.name, true) {
            return Ok(found);
        }
        // A separate task, because dropping this future on a client disconnect must not abort the load.
        let loading = tokio::spawn(self.clone().load_next(model_entry, load_lock));
        loading
            .await
            .unwrap_or_else(|_| Err(ApiError::server("internal error: loading the model panicked")))
    }

    /// Returns the entry of a model with its files, downloading them if necessary. Other models can be loaded
    /// meanwhile.
    async fn downloaded(&self, model_entry: ModelEntry) -> ApiResult<ModelEntry> {
        if let Some(download) = model_entry.download.clone() {
            let name = model_entry.name.clone();
            let refused = |why: String| ApiError::unprocessable(format!("cannot download the model {name:?}: {why}"));
            let done = tokio::task::spawn_blocking(move || download.wait()).await;
            done.map_err(|_| refused("internal error during the download".to_owned()))?
                .map_err(refused)?;
        }
        Ok(model_entry.now().into_owned())
    }

    async fn load_next(
        self: Arc<ModelPool>,
        model_entry: ModelEntry,
        _turn: OwnedMutexGuard<()>,
    ) -> ApiResult<(Loaded, InFlightGuard)> {
        if !self.is_open() {
            return Err(ApiError::unavailable("the server is shutting down"));
        }
        self.evict_for(model_entry.n_bytes).await?;
        let (pool, of_load) = (self.clone(), model_entry.clone());
        let done = tokio::task::spawn_blocking(move || (pool.load)(&of_load)).await;
        let ModelEntry { name, n_bytes, .. } = model_entry;
        let refused = |why: String| ApiError::unprocessable(format!("cannot load the model {name:?}: {why}"));
        let service = done
            .map_err(|_| refused("internal error while loading".to_owned()))?
            .map_err(refused)?;
        let app = Arc::new(App { service });
        let n_in_flight = Arc::default();
        let in_flight = InFlightGuard::new(&n_in_flight);
        let made = Loaded {
            routes: crate::routes::model_routes(app.clone()),
            used: self.clock.fetch_add(1, Ordering::Relaxed),
            name,
            app,
            n_bytes,
            n_in_flight,
        };
        let mut all = self.lock();
        if !self.is_open() {
            made.app.service.scheduler.close();
        }
        all.push(made.clone());
        Ok((made, in_flight))
    }

    /// Unloads idle models until a model of `n_bytes` fits the limits.
    async fn evict_for(&self, n_bytes: u64) -> ApiResult<()> {
        loop {
            let unloaded = {
                let mut all = self.lock();
                let n_used = all.iter().fold(n_bytes, |n, loaded| n.saturating_add(loaded.n_bytes));
                if all.is_empty() || all.len() < self.params.max_loaded && n_used <= self.params.max_bytes {
                    return Ok(());
                }
                let pinned = |name: &str| {
                    self.params
                        .models
                        .iter()
                        .any(|model_entry| model_entry.is_pinned && model_entry.name == name)
                };
                let idle = all
                    .iter()
                    .enumerate()
                    .filter(|(_, l)| l.n_in_flight.load(Ordering::Acquire) == 0 && !pinned(&l.name));
                let oldest = idle.min_by_key(|(_, loaded)| loaded.used).map(|(i, _)| i);
                oldest.map(|i| all.swap_remove(i))
            };
            let Some(unloaded) = unloaded else {
                let message = "cannot load another model: all loaded models are in use";
                return Err(ApiError {
                    retry_after: Some(5),
                    ..ApiError::unavailable(message)
                });
            };
            drop_blocking(unloaded).await;
        }
    }
}

/// Drops a model on a blocking thread, because its scheduler thread must be joined.
async fn drop_blocking(unloaded: Loaded) {
    let _ = tokio::task::spawn_blocking(move || drop(unloaded)).await;
}

/// Returns the error for a request to a model that is not loaded.
fn not_loaded(name: &str, how: &str) -> ApiError {
    ApiError {
        code: Some("model_not_loaded"),
        ..ApiError::unavailable(format!("the model {name:?} is not loaded; {how}"))
    }
}
