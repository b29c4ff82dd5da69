//! Several models behind one address: a request is answered by the model that it names, which is loaded when it is first asked for. Where there is no room
//! for another, the one goes that was not asked for longest and that nobody waits for.

mod list;
mod routes;

pub use routes::FLEET;

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
use crate::served::Served;

/// A model that can be asked for.
#[derive(Clone, Debug)]
pub struct Card {
    /// Its name.
    pub name: String,
    /// Further names that it answers to.
    pub aliases: Vec<String>,
    /// Its first file; empty as long as it is not here.
    pub path: PathBuf,
    /// Bytes of its files.
    pub n_bytes: u64,
    /// It is never unloaded.
    pub is_pinned: bool,
    /// What fetches its files, if they may not be here.
    pub later: Option<Arc<Later>>,
}

impl Card {
    /// It with its files, if they have been fetched meanwhile.
    fn now(&self) -> Cow<'_, Card> {
        let found = self.later.as_ref().and_then(|later| later.found());
        found.map_or(Cow::Borrowed(self), |(path, n_bytes)| {
            Cow::Owned(Card {
                path,
                n_bytes,
                ..self.clone()
            })
        })
    }
}

/// Files of a model that are fetched when it is first asked for.
pub struct Later {
    fetch: Box<Fetch>,
    found: Mutex<Option<(PathBuf, u64)>>,
    /// Held by whoever fetches.
    turn: Mutex<()>,
}

/// Fetches a model's files: the first of them, and the bytes of all; or says in a sentence why that cannot be.
pub type Fetch = dyn Fn() -> Result<(PathBuf, u64), String> + Send + Sync;

impl Later {
    /// Nothing is fetched yet.
    pub fn new(fetch: Box<Fetch>) -> Later {
        Later {
            fetch,
            found: Mutex::default(),
            turn: Mutex::default(),
        }
    }

    fn found(&self) -> Option<(PathBuf, u64)> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Fetches them, or waits for whoever does. What failed is tried again by the next one.
    fn wait(&self) -> Result<(), String> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        if self.found().is_none() {
            let found = (self.fetch)()?;
            *self.found.lock().unwrap_or_else(PoisonError::into_inner) = Some(found);
        }
        Ok(())
    }
}

impl std::fmt::Debug for Later {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Later")
            .field("found", &self.found)
            .finish_non_exhaustive()
    }
}

/// Loads a model, or says in a sentence why that cannot be.
pub type Load = dyn Fn(&Card) -> Result<Served, String> + Send + Sync;

/// How several models are served.
pub struct FleetParams {
    /// The models.
    pub cards: Vec<Card>,
    /// Most that are loaded at once.
    pub max_loaded: usize,
    /// Most bytes of their files together; one that is larger is loaded alone.
    pub max_bytes: u64,
    /// A request for an answer loads its model; otherwise only `/models/load` does.
    pub autoload: bool,
    /// What made the program, such as a version.
    pub build: String,
}

/// Several models.
pub struct Fleet {
    params: FleetParams,
    load: Box<Load>,
    loaded: Mutex<Vec<Loaded>>,
    /// Held by whoever loads: one is loaded at a time.
    turn: Arc<tokio::sync::Mutex<()>>,
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
    n_busy: Arc<AtomicUsize>,
}

/// Counts a request until its answer is told to the end.
struct Busy(Arc<AtomicUsize>);

impl Busy {
    fn new(n: &Arc<AtomicUsize>) -> Busy {
        n.fetch_add(1, Ordering::AcqRel);
        Busy(n.clone())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Fleet {
    /// Nothing is loaded yet.
    pub fn new(params: FleetParams, load: Box<Load>) -> Arc<Fleet> {
        Arc::new(Fleet {
            params,
            load,
            loaded: Mutex::default(),
            turn: Arc::default(),
            clock: AtomicU64::new(0),
            is_closed: AtomicBool::new(false),
            headers: Headers::default(),
        })
    }

    /// How many models there are.
    pub fn n_models(&self) -> usize {
        self.params.cards.len()
    }

    /// Loads a model before somebody asks for it.
    ///
    /// # Errors
    ///
    /// If there is none of that name, or it cannot be loaded.
    pub async fn preload(self: &Arc<Fleet>, name: &str) -> ApiResult<()> {
        self.get(name, true).await.map(drop)
    }

    /// Unloads a model; false if it is not loaded.
    async fn unload(&self, name: &str) -> ApiResult<bool> {
        let card = self.card(name)?;
        let gone = {
            let mut all = self.lock();
            let Some(i) = all.iter().position(|loaded| loaded.name == card.name) else {
                return Ok(false);
            };
            if all[i].n_busy.load(Ordering::Acquire) > 0 {
                return Err(ApiError {
                    status: StatusCode::CONFLICT,
                    retry_after: Some(5),
                    ..ApiError::invalid(format!("the model {:?} is in use", card.name))
                });
            }
            all.swap_remove(i)
        };
        drop_later(gone).await;
        Ok(true)
    }

    /// No model takes new requests, and none is loaded any more.
    pub fn close(&self) {
        // Under the lock: whatever is loaded later sees it.
        let all = self.lock();
        self.is_closed.store(true, Ordering::Release);
        all.iter().for_each(|loaded| loaded.app.served.scheduler.close());
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

    /// A model that is loaded. `is_use`: it counts as asked for.
    fn find(&self, name: &str, is_use: bool) -> Option<(Loaded, Busy)> {
        let mut all = self.lock();
        let found = all.iter_mut().find(|loaded| loaded.name == name)?;
        if is_use {
            found.used = self.clock.fetch_add(1, Ordering::Relaxed);
        }
        // Counted under the lock: nobody takes it for one that is idle.
        Some((found.clone(), Busy::new(&found.n_busy)))
    }

    /// The model of a name, or of another that it answers to.
    fn card(&self, name: &str) -> ApiResult<&Card> {
        let cards = &self.params.cards;
        let by_alias = || cards.iter().find(|card| card.aliases.iter().any(|alias| alias == name));
        cards
            .iter()
            .find(|card| card.name == name)
            .or_else(by_alias)
            .ok_or_else(|| {
                let known: Vec<&str> = cards.iter().map(|card| card.name.as_str()).take(20).collect();
                let more = if cards.len() > known.len() { " and more" } else { "" };
                let name: String = name.chars().take(128).collect();
                let message = format!("there is no model {name:?} here; there are {}{more}", known.join(", "));
                ApiError {
                    code: Some("model_not_found"),
                    param: Some("model".to_owned()),
                    ..ApiError::not_found(message)
                }
            })
    }

    /// A model, which is loaded if it is not and that `may_load`.
    async fn get(self: &Arc<Fleet>, name: &str, may_load: bool) -> ApiResult<(Loaded, Busy)> {
        let card = self.card(name)?.clone();
        if let Some(found) = self.find(&card.name, true) {
            return Ok(found);
        }
        if !may_load {
            return Err(not_loaded(&card.name, "POST /models/load loads it"));
        }
        let card = self.here(card).await?;
        let turn = self.turn.clone().lock_owned().await;
        if let Some(found) = self.find(&card.name, true) {
            return Ok(found);
        }
        // Whoever waits may go: what is being loaded keeps its turn until it is.
        let loading = tokio::spawn(self.clone().load_next(card, turn));
        loading
            .await
            .unwrap_or_else(|_| Err(ApiError::server("the model could not be loaded")))
    }

    /// A model's card with its files, which are fetched if they are not here. Others are loaded meanwhile.
    async fn here(&self, card: Card) -> ApiResult<Card> {
        if let Some(later) = card.later.clone() {
            let name = card.name.clone();
            let refused = |why: String| ApiError::unprocessable(format!("the model {name:?} cannot be fetched: {why}"));
            let done = tokio::task::spawn_blocking(move || later.wait()).await;
            done.map_err(|_| refused("the program has failed at it".to_owned()))?
                .map_err(refused)?;
        }
        Ok(card.now().into_owned())
    }

    async fn load_next(self: Arc<Fleet>, card: Card, _turn: OwnedMutexGuard<()>) -> ApiResult<(Loaded, Busy)> {
        if !self.is_open() {
            return Err(ApiError::unavailable("the server is going down"));
        }
        self.make_room(card.n_bytes).await?;
        let (fleet, of_load) = (self.clone(), card.clone());
        let done = tokio::task::spawn_blocking(move || (fleet.load)(&of_load)).await;
        let Card { name, n_bytes, .. } = card;
        let refused = |why: String| ApiError::unprocessable(format!("the model {name:?} cannot be loaded: {why}"));
        let served = done
            .map_err(|_| refused("the program has failed at it".to_owned()))?
            .map_err(refused)?;
        let app = Arc::new(App { served });
        let n_busy = Arc::default();
        let busy = Busy::new(&n_busy);
        let made = Loaded {
            routes: crate::routes::of_model(app.clone()),
            used: self.clock.fetch_add(1, Ordering::Relaxed),
            name,
            app,
            n_bytes,
            n_busy,
        };
        let mut all = self.lock();
        if !self.is_open() {
            made.app.served.scheduler.close();
        }
        all.push(made.clone());
        Ok((made, busy))
    }

    /// Unloads models until there is room for another of so many bytes.
    async fn make_room(&self, n_bytes: u64) -> ApiResult<()> {
        loop {
            let gone = {
                let mut all = self.lock();
                let n_used = all.iter().fold(n_bytes, |n, loaded| n.saturating_add(loaded.n_bytes));
                if all.is_empty() || all.len() < self.params.max_loaded && n_used <= self.params.max_bytes {
                    return Ok(());
                }
                let pinned = |name: &str| self.params.cards.iter().any(|card| card.is_pinned && card.name == name);
                let idle = all
                    .iter()
                    .enumerate()
                    .filter(|(_, l)| l.n_busy.load(Ordering::Acquire) == 0 && !pinned(&l.name));
                let oldest = idle.min_by_key(|(_, loaded)| loaded.used).map(|(i, _)| i);
                oldest.map(|i| all.swap_remove(i))
            };
            let Some(gone) = gone else {
                let message = "there is no room for another model: those that are loaded are in use";
                return Err(ApiError {
                    retry_after: Some(5),
                    ..ApiError::unavailable(message)
                });
            };
            drop_later(gone).await;
        }
    }
}

/// Its thread is waited for.
async fn drop_later(gone: Loaded) {
    let _ = tokio::task::spawn_blocking(move || drop(gone)).await;
}

/// A model that is asked something before it is there.
fn not_loaded(name: &str, how: &str) -> ApiError {
    ApiError {
        code: Some("model_not_loaded"),
        ..ApiError::unavailable(format!("the model {name:?} is not loaded; {how}"))
    }
}
