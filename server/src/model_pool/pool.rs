//! The pool: loads models on first use, and unloads the least recently used ones.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::http::StatusCode;
use serde_json::Value as Json;
use tokio::sync::OwnedMutexGuard;

use super::activity::{Activity, InFlightGuard};
use super::entry::{ModelEntry, ReadHeader};
use super::headers::Headers;
use crate::api::{ApiError, ApiResult};
use crate::app::App;
use crate::native::{Measured, props_json};
use crate::router::model_routes;

/// Loads a model, or returns an error message.
pub type Load = dyn Fn(&ModelEntry) -> Result<App, String> + Send + Sync;

/// Settings for serving several models.
pub struct ModelPoolParams {
    /// Configured models.
    pub models: Vec<ModelEntry>,
    /// Maximum number of loaded models.
    pub max_loaded: usize,
    /// Maximum total file size of loaded models in bytes. A larger model is loaded alone.
    pub max_bytes: u64,
    /// Maximum time that a request for another model waits until a loaded model is idle.
    pub t_wait: Duration,
    /// Time without requests after which a model is unloaded, unless it is pinned; `None`: never.
    pub t_idle: Option<Duration>,
    /// Load a model on its first completion request; otherwise only `/models/load` does.
    pub autoload: bool,
    /// Build identification, such as the version.
    pub build: String,
}

/// Several models and the state of the loaded ones.
pub struct ModelPool {
    pub(super) params: ModelPoolParams,
    load: Box<Load>,
    pub(super) read_header: Box<ReadHeader>,
    loaded: Mutex<Vec<Loaded>>,
    /// Locked during a load; models are loaded one at a time.
    load_lock: Arc<tokio::sync::Mutex<()>>,
    clock: AtomicU64,
    /// State of idle models at the time they were unloaded.
    slept: Mutex<HashMap<String, Slept>>,
    watches_idle: AtomicBool,
    is_closed: AtomicBool,
    pub(super) headers: Headers,
}

/// A loaded model.
#[derive(Clone)]
pub(super) struct Loaded {
    pub name: String,
    pub app: Arc<App>,
    pub routes: Router,
    /// Time of the last use.
    pub used: u64,
    n_bytes: u64,
    pub activity: Arc<Activity>,
}

/// State of a model that was unloaded as idle.
#[derive(Clone)]
pub(super) struct Slept {
    /// Properties, as in `/props`.
    pub props: Json,
    pub measured: Measured,
}

/// Time between checks for idle models.
const IDLE_CHECK: Duration = Duration::from_millis(200);
/// Time between checks while a request waits for an idle model.
const WAIT_CHECK: Duration = Duration::from_millis(20);

impl ModelPool {
    /// Creates the pool without loading a model.
    pub fn new(params: ModelPoolParams, load: Box<Load>, read_header: Box<ReadHeader>) -> Arc<ModelPool> {
        Arc::new(ModelPool {
            params,
            load,
            read_header,
            loaded: Mutex::default(),
            load_lock: Arc::default(),
            clock: AtomicU64::new(0),
            slept: Mutex::default(),
            watches_idle: AtomicBool::new(false),
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
    pub(super) async fn unload(&self, name: &str) -> ApiResult<bool> {
        let model_entry = self.model_entry(name)?;
        let unloaded = {
            let mut all = self.lock();
            let Some(i) = all.iter().position(|loaded| loaded.name == model_entry.name) else {
                return Ok(false);
            };
            if all[i].activity.is_busy() {
                return Err(ApiError {
                    status: StatusCode::CONFLICT,
                    retry_after: Some(5),
                    ..ApiError::invalid(format!("the model {:?} is in use", model_entry.name))
                });
            }
            all.swap_remove(i)
        };
        drop_blocking(vec![unloaded]).await;
        Ok(true)
    }

    /// Stops accepting requests and loading models.
    pub fn close(&self) {
        // Set under the lock, so that a load that finishes later sees the flag.
        let all = self.lock();
        self.is_closed.store(true, Ordering::Release);
        all.iter().for_each(|loaded| loaded.app.service.scheduler.close());
    }

    pub(super) fn is_open(&self) -> bool {
        !self.is_closed.load(Ordering::Acquire)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Loaded>> {
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn all(&self) -> Vec<Loaded> {
        self.lock().clone()
    }

    /// Returns a loaded model. With `is_use`, marks it as most recently used.
    pub(super) fn find(&self, name: &str, is_use: bool) -> Option<(Loaded, InFlightGuard)> {
        let mut all = self.lock();
        let found = all.iter_mut().find(|loaded| loaded.name == name)?;
        if is_use {
            found.used = self.clock.fetch_add(1, Ordering::Relaxed);
        }
        // Counted under the lock, so that the model cannot be unloaded as idle in between.
        Some((found.clone(), found.activity.begin(is_use)))
    }

    /// Returns the model with this name or alias.
    pub(super) fn model_entry(&self, name: &str) -> ApiResult<&ModelEntry> {
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
    pub(super) async fn get(self: &Arc<ModelPool>, name: &str, may_load: bool) -> ApiResult<(Loaded, InFlightGuard)> {
        let model_entry = self.model_entry(name)?.clone();
        if let Some(found) = self.find(&model_entry.name, true) {
            return Ok(found);
        }
        if !may_load {
            return Err(not_loaded(&model_entry.name, "load it with POST /models/load"));
        }
        let model_entry = self.downloaded(model_entry).await?;
        let start = Instant::now();
        let load_lock = self.load_lock.clone().lock_owned().await;
        if let Some(found) = self.find(&model_entry.name, true) {
            return Ok(found);
        }
        self.make_place(model_entry.n_bytes, start + self.params.t_wait).await?;
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
            return Err(shutting_down());
        }
        let (pool, of_load) = (self.clone(), model_entry.clone());
        let done = tokio::task::spawn_blocking(move || (pool.load)(&of_load)).await;
        let ModelEntry { name, n_bytes, .. } = model_entry;
        let refused = |why: String| ApiError::unprocessable(format!("cannot load the model {name:?}: {why}"));
        let app = done
            .map_err(|_| refused("internal error while loading".to_owned()))?
            .map_err(refused)?;
        let app = Arc::new(app);
        let activity = Activity::new();
        let in_flight = activity.begin(true);
        self.watch_idle();
        let made = Loaded {
            routes: model_routes(app.clone()),
            used: self.clock.fetch_add(1, Ordering::Relaxed),
            name,
            app,
            n_bytes,
            activity,
        };
        self.slept
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&made.name);
        let mut all = self.lock();
        if !self.is_open() {
            made.app.service.scheduler.close();
        }
        all.push(made.clone());
        Ok((made, in_flight))
    }

    /// Starts the task that unloads idle models. The task ends when the pool is dropped.
    fn watch_idle(self: &Arc<ModelPool>) {
        if self.watches_idle.swap(true, Ordering::AcqRel) {
            return;
        }
        let pool = Arc::downgrade(self);
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(IDLE_CHECK).await;
                let Some(pool) = pool.upgrade().filter(|pool| pool.is_open()) else {
                    return;
                };
                drop_blocking(pool.take_idle()).await;
            }
        });
    }

    /// Removes the models whose idle time is over, and stores their properties.
    fn take_idle(&self) -> Vec<Loaded> {
        let mut all = self.lock();
        let idle: Vec<Loaded> = all
            .extract_if(.., |loaded| {
                loaded.activity.is_expired(self.params.t_idle) && !self.is_pinned(loaded)
            })
            .collect();
        let mut slept = self.slept.lock().unwrap_or_else(PoisonError::into_inner);
        for loaded in &idle {
            let mut props = props_json(&loaded.app.service);
            props["is_sleeping"] = true.into();
            let measured = Measured::new(&loaded.app.service);
            slept.insert(loaded.name.clone(), Slept { props, measured });
        }
        idle
    }

    /// Returns the counters of all models that are loaded or were unloaded as idle.
    pub(super) fn measured(&self) -> Vec<Measured> {
        let all = self.all();
        let slept = self.slept.lock().unwrap_or_else(PoisonError::into_inner);
        let is_loaded = |name: &String| all.iter().any(|loaded| loaded.name == *name);
        let mut asleep: Vec<_> = slept.iter().filter(|(name, _)| !is_loaded(name)).collect();
        asleep.sort_by_key(|(name, _)| *name);
        let loaded = all.iter().map(|loaded| Measured::new(&loaded.app.service));
        loaded
            .chain(asleep.into_iter().map(|(_, slept)| slept.measured.clone()))
            .collect()
    }

    /// Returns the state of a model that was unloaded as idle.
    pub(super) fn slept(&self, name: &str) -> Option<Slept> {
        let name = &self.model_entry(name).ok()?.name;
        let slept = self.slept.lock().unwrap_or_else(PoisonError::into_inner);
        slept.get(name).cloned()
    }

    pub(super) fn is_pinned(&self, loaded: &Loaded) -> bool {
        let mut models = self.params.models.iter();
        models.any(|entry| entry.is_pinned && entry.name == loaded.name)
    }

    /// Returns true if a model of `n_bytes` fits the limits next to the models in `loaded`.
    fn fits<'a>(&self, loaded: impl Iterator<Item = &'a Loaded>, n_bytes: u64) -> bool {
        let (n, n_used) = loaded.fold((0, n_bytes), |(n, n_used), loaded| {
            (n + 1, n_used.saturating_add(loaded.n_bytes))
        });
        n == 0 || n < self.params.max_loaded && n_used <= self.params.max_bytes
    }

    /// Unloads idle models until a model of `n_bytes` fits the limits. Waits for models in use until `deadline`.
    /// The load lock must be held, so that no other model takes the place.
    async fn make_place(&self, n_bytes: u64, deadline: Instant) -> ApiResult<()> {
        loop {
            if let Some(evicted) = self.evict_for(n_bytes)? {
                drop_blocking(evicted).await;
                return Ok(());
            }
            if !self.is_open() {
                return Err(shutting_down());
            }
            if Instant::now() >= deadline {
                return Err(all_in_use());
            }
            tokio::time::sleep(WAIT_CHECK).await;
        }
    }

    /// Removes the least recently used idle models until a model of `n_bytes` fits the limits. Removes no model and
    /// returns `None` if models in use prevent that.
    fn evict_for(&self, n_bytes: u64) -> ApiResult<Option<Vec<Loaded>>> {
        let mut all = self.lock();
        let is_evictable = |loaded: &Loaded| !loaded.activity.is_busy() && !self.is_pinned(loaded);
        if !self.fits(all.iter().filter(|loaded| self.is_pinned(loaded)), n_bytes) {
            let why = "cannot load another model: the pinned models (--models-pin) leave no place for it";
            return Err(ApiError::unavailable(why));
        }
        if !self.fits(all.iter().filter(|loaded| !is_evictable(loaded)), n_bytes) {
            return Ok(None);
        }
        let mut evicted = Vec::new();
        // Requests start under the lock, so an idle model remains idle.
        while !self.fits(all.iter(), n_bytes) {
            let idle = all.iter().enumerate().filter(|(_, loaded)| is_evictable(loaded));
            let Some((oldest, _)) = idle.min_by_key(|(_, loaded)| loaded.used) else {
                break;
            };
            evicted.push(all.swap_remove(oldest));
        }
        Ok(Some(evicted))
    }
}

/// Drops models on a blocking thread, because their scheduler threads must be joined.
async fn drop_blocking(unloaded: Vec<Loaded>) {
    if !unloaded.is_empty() {
        let _ = tokio::task::spawn_blocking(move || drop(unloaded)).await;
    }
}

fn shutting_down() -> ApiError {
    ApiError::unavailable("the server is shutting down")
}

fn all_in_use() -> ApiError {
    ApiError {
        retry_after: Some(5),
        ..ApiError::unavailable("cannot load another model: all loaded models are in use")
    }
}

/// Returns the error for a request to a model that is not loaded.
pub(super) fn not_loaded(name: &str, how: &str) -> ApiError {
    ApiError {
        code: Some("model_not_loaded"),
        ..ApiError::unavailable(format!("the model {name:?} is not loaded; {how}"))
    }
}
