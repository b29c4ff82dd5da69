//! Several models behind one address: a request is answered by the model that it names, which is loaded when it is first asked for. Where there is no room
//! for another, the one goes that was not asked for longest and that nobody waits for.

use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::Method;
use axum::response::Response;
use axum::routing::any;
use engine::gguf::Gguf;
use futures_util::StreamExt;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde_json::{Value as Json, json};
use tower::ServiceExt;

use crate::api::{ApiError, ApiResult};
use crate::http::{App, Record, check_keys, json};
use crate::openai::model_json;
use crate::routes::{refusal, router};
use crate::served::Served;

/// Most bytes of a body, and most time for it to come.
const MAX_LEN: usize = 16 << 20;
const MAX_TIME: Duration = Duration::from_secs(30);

/// A model that can be asked for.
#[derive(Clone, Debug)]
pub struct Card {
    /// Its name.
    pub name: String,
    /// Its first file.
    pub path: PathBuf,
    /// It is never unloaded.
    pub is_pinned: bool,
}

/// Loads a model, or says in a sentence why that cannot be.
pub type Load = dyn Fn(&Card) -> Result<Served, String> + Send + Sync;
/// Is told of requests.
pub type Log = dyn Fn(&Record) + Send + Sync;

/// How several models are served.
pub struct FleetParams {
    /// The models.
    pub cards: Vec<Card>,
    /// Most that are loaded at once.
    pub max_loaded: usize,
    /// Most bytes of their files together.
    pub max_bytes: u64,
    /// Keys of which requests have to name one.
    pub keys: Vec<String>,
    /// Is told of requests.
    pub log: Option<Arc<Log>>,
}

/// Several models.
pub struct Fleet {
    params: FleetParams,
    load: Box<Load>,
    loaded: Mutex<Vec<Loaded>>,
    /// One is loaded at a time.
    turn: tokio::sync::Mutex<()>,
    clock: AtomicU64,
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
            turn: tokio::sync::Mutex::default(),
            clock: AtomicU64::new(0),
        })
    }

    /// The routes of all models.
    pub fn routes(self: &Arc<Fleet>) -> Router {
        Router::new().fallback(any(answer)).with_state(self.clone())
    }

    /// How many models there are.
    pub fn n_models(&self) -> usize {
        self.params.cards.len()
    }

    /// Loads a model before somebody asks for it.
    pub async fn preload(self: &Arc<Fleet>, name: &str) -> ApiResult<()> {
        self.get(name).await.map(drop)
    }

    /// No model takes new requests.
    pub fn close(&self) {
        self.all().iter().for_each(|loaded| loaded.app.served.scheduler.close());
    }

    fn all(&self) -> Vec<Loaded> {
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A model that is loaded, which is used now.
    fn find(&self, name: &str) -> Option<(Loaded, Busy)> {
        let mut all = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        let found = all.iter_mut().find(|loaded| loaded.name == name)?;
        found.used = self.clock.fetch_add(1, Ordering::Relaxed);
        // Counted under the lock: nobody takes it for one that is idle.
        Some((found.clone(), Busy::new(&found.n_busy)))
    }

    /// A model, which is loaded if it is not.
    async fn get(self: &Arc<Fleet>, name: &str) -> ApiResult<(Loaded, Busy)> {
        if let Some(found) = self.find(name) {
            return Ok(found);
        }
        let Some(card) = self.params.cards.iter().find(|card| card.name == name).cloned() else {
            let name: String = name.chars().take(128).collect();
            let known: Vec<&str> = self
                .params
                .cards
                .iter()
                .map(|card| card.name.as_str())
                .take(20)
                .collect();
            let message = format!("there is no model {name:?} here; there are {}", known.join(", "));
            return Err(ApiError {
                code: Some("model_not_found"),
                param: Some("model".to_owned()),
                ..ApiError::not_found(message)
            });
        };
        let _turn = self.turn.lock().await;
        if let Some(found) = self.find(name) {
            return Ok(found);
        }
        let n_bytes = std::fs::metadata(&card.path).map_or(0, |file| file.len());
        self.make_room(n_bytes).await?;
        let fleet = self.clone();
        let loaded = tokio::task::spawn_blocking(move || (fleet.load)(&card)).await;
        let refused = |why: String| ApiError::unprocessable(format!("the model {name:?} cannot be loaded: {why}"));
        let served = loaded
            .map_err(|_| refused("the program has failed at it".to_owned()))?
            .map_err(refused)?;
        let log = self.params.log.clone();
        let app = Arc::new(App {
            served,
            keys: self.params.keys.clone(),
            log: log.map(|log| -> crate::http::Log { Box::new(move |record| log(record)) }),
        });
        let routes = router(app.clone());
        let used = self.clock.fetch_add(1, Ordering::Relaxed);
        let n_busy = Arc::default();
        let busy = Busy::new(&n_busy);
        let made = Loaded {
            name: name.to_owned(),
            app,
            routes,
            used,
            n_bytes,
            n_busy,
        };
        self.loaded
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(made.clone());
        Ok((made, busy))
    }

    /// Unloads models until there is room for another of so many bytes.
    async fn make_room(&self, n_bytes: u64) -> ApiResult<()> {
        loop {
            let gone = {
                let mut all = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
                let in_use: u64 = all.iter().map(|loaded| loaded.n_bytes).sum();
                if all.len() < self.params.max_loaded && (all.is_empty() || in_use + n_bytes <= self.params.max_bytes) {
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
            // Its thread is waited for.
            let _ = tokio::task::spawn_blocking(move || drop(gone)).await;
        }
    }

    /// The model of a request that names none: the only one, one that is pinned, or the one that was used last.
    fn default_name(&self) -> ApiResult<String> {
        if let [card] = &self.params.cards[..] {
            return Ok(card.name.clone());
        }
        let last = self
            .all()
            .into_iter()
            .max_by_key(|loaded| loaded.used)
            .map(|loaded| loaded.name);
        let pinned = self
            .params
            .cards
            .iter()
            .find(|card| card.is_pinned)
            .map(|card| card.name.clone());
        pinned
            .or(last)
            .ok_or_else(|| ApiError::field("model", "there is none, and several models are served"))
    }

    /// All models: those that are loaded in full, of others what their files say.
    fn list(&self) -> Vec<Json> {
        let loaded = self.all();
        let entry = |card: &Card| match loaded.iter().find(|loaded| loaded.name == card.name) {
            Some(loaded) => {
                let mut entry = model_json(&loaded.app.served);
                entry["status"] = json!({ "value": "loaded" });
                entry
            }
            None => unloaded(card),
        };
        self.params.cards.iter().map(entry).collect()
    }

    /// What is told without a model.
    fn of_all(&self, path: &str) -> Option<ApiResult> {
        let found = match path {
            "/v1/models" | "/models" => Ok(json(&json!({ "object": "list", "data": self.list() }))),
            "/health" | "/v1/health" => self.health(),
            "/ready" => match self.all().iter().all(|loaded| loaded.app.served.scheduler.is_open()) {
                true => Ok(json(&json!({ "status": "ready" }))),
                false => Err(ApiError::unavailable("the server is going down")),
            },
            "/api/tags" | "/api/ps" => {
                let only_loaded = path == "/api/ps";
                let is_told = |entry: &&Json| !only_loaded || entry["status"]["value"] == "loaded";
                let all = self.list();
                let told = all
                    .iter()
                    .filter(is_told)
                    .map(|entry| json!({ "name": entry["id"], "model": entry["id"] }));
                Ok(json(&json!({ "models": told.collect::<Vec<_>>() })))
            }
            _ => {
                let name = path.strip_prefix("/v1/models/")?;
                let found = self.list().into_iter().find(|entry| entry["id"] == name);
                found
                    .map(|entry| json(&entry))
                    .ok_or_else(|| ApiError::not_found("there is no such model"))
            }
        };
        Some(found)
    }

    fn health(&self) -> ApiResult {
        match self
            .all()
            .iter()
            .find(|loaded| !loaded.app.served.scheduler.is_running())
        {
            None => Ok(json(&json!({ "status": "ok" }))),
            Some(loaded) => Err(ApiError::unavailable(format!(
                "the model {:?} is not computed any more",
                loaded.name
            ))),
        }
    }
}

/// What a file says of a model without its being loaded.
fn unloaded(card: &Card) -> Json {
    let created = std::fs::metadata(&card.path)
        .and_then(|file| file.modified())
        .unwrap_or(SystemTime::UNIX_EPOCH);
    let created = created.duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let mut entry = json!({ "id": card.name, "object": "model", "created": created, "owned_by": "llama", "status": { "value": "unloaded" } });
    match Gguf::open_header(&card.path) {
        Err(error) => entry["status"] = json!({ "value": "failed", "error": error.to_string() }),
        Ok(header) => {
            let arch = header
                .metadata
                .optional::<&str>("general.architecture")
                .ok()
                .flatten()
                .unwrap_or_default();
            let n_ctx = header
                .metadata
                .optional::<u32>(&format!("{arch}.context_length"))
                .ok()
                .flatten();
            entry["meta"] = json!({ "architecture": arch, "n_ctx_train": n_ctx, "has_chat_template": header.metadata.contains("tokenizer.chat_template") });
        }
    }
    entry
}

async fn answer(State(fleet): State<Arc<Fleet>>, request: Request) -> Response {
    let path = request.uri().path().to_owned();
    match forward(&fleet, request).await {
        Ok(response) => response,
        Err(error) => refusal(&path, &error, ""),
    }
}

async fn forward(fleet: &Arc<Fleet>, request: Request) -> ApiResult {
    let (parts, body) = request.into_parts();
    // Before anything is loaded for somebody.
    check_keys(&fleet.params.keys, &parts.headers, parts.uri.path())?;
    if parts.method == Method::GET
        && let Some(told) = fleet.of_all(parts.uri.path())
    {
        return told;
    }
    let bytes = whole(body).await?;
    let in_query = parts
        .uri
        .query()
        .unwrap_or_default()
        .split('&')
        .find_map(|pair| pair.strip_prefix("model="));
    let name = match name_of(&bytes).or(in_query.map(str::to_owned)) {
        Some(name) => name,
        None => fleet.default_name()?,
    };
    let (loaded, busy) = fleet.get(&name).await?;
    let request = Request::from_parts(parts, Body::from(bytes));
    let Ok(response) = loaded.routes.oneshot(request).await as Result<Response, Infallible>;
    let (head, body) = response.into_parts();
    // The model stays as long as its answer is told.
    let told = body.into_data_stream().map(move |piece| {
        let _ = &busy;
        piece
    });
    Ok(Response::from_parts(head, Body::from_stream(told)))
}

async fn whole(body: Body) -> ApiResult<Bytes> {
    let collected = tokio::time::timeout(MAX_TIME, Limited::new(body, MAX_LEN).collect()).await;
    let collected = collected.map_err(|_| ApiError::too_slow())?;
    let collected = collected.map_err(|e| match e.is::<LengthLimitError>() {
        true => ApiError::too_large(MAX_LEN),
        false => ApiError::invalid("the body did not come to its end"),
    })?;
    Ok(collected.to_bytes())
}

/// The model that a body names; nothing else of it is kept.
fn name_of(body: &[u8]) -> Option<String> {
    #[derive(serde::Deserialize)]
    struct Named {
        model: Option<String>,
        name: Option<String>,
    }
    let named: Named = serde_json::from_slice(body).ok()?;
    named.model.or(named.name).filter(|name| !name.is_empty())
}
