//! Requests to several models: what is told of all, and whom the rest is for.

use std::convert::Infallible;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{FromRequest, Path, Request, State};
use axum::http::Method;
use axum::response::Response;
use axum::routing::{MethodFilter, get, on, post};
use futures_util::StreamExt;
use percent_encoding::percent_decode_str;
use serde_json::{Map, Value as Json, json};
use tower::ServiceExt;

use super::{Busy, Fleet, Loaded, not_loaded};
use crate::api::{ApiError, ApiResult, Field, Fields, Form};
use crate::http::{Body as HttpBody, Bytes, Client, Gate, blocking, guarded, json};
use crate::native::{check_health, exposition, readiness};
use crate::ollama;
use crate::openapi::document;
use crate::routes::{ROUTES, Route, with_page};

/// Paths that are answered for all models, whether or not one is loaded.
const OF_ALL: [&str; 11] = [
    "/v1/models",
    "/models",
    "/v1/models/{name}",
    "/health",
    "/v1/health",
    "/ready",
    "/api/tags",
    "/api/ps",
    "/api/show",
    "/openapi.json",
    "/metrics",
];

/// The fields of `/models/load` and `/models/unload`.
const LOAD_FIELDS: &[Field] = &[Field {
    name: "model",
    form: Form::Text,
    doc: "Its name.",
}];

/// What can be asked for only where there are several models.
pub const FLEET: &[Route<Arc<Fleet>>] = &[
    Route {
        method: "POST",
        paths: &["/models/load"],
        doc: "Loads a model of several, and answers once it is there.",
        fields: &[LOAD_FIELDS],
        sampling: false,
        query: &[],
        router: || post(load),
    },
    Route {
        method: "POST",
        paths: &["/models/unload"],
        doc: "Unloads a model of several; one that is in use has status 409.",
        fields: &[LOAD_FIELDS],
        sampling: false,
        query: &[],
        router: || post(unload),
    },
];

impl Fleet {
    /// The routes of all models, behind what is asked of every request.
    pub fn routes(self: &Arc<Fleet>, gate: Gate) -> Router {
        let mut routes: Router<Arc<Fleet>> = Router::new()
            .route("/v1/models", get(models))
            .route("/models", get(models))
            .route("/v1/models/{name}", get(model))
            .route("/health", get(health))
            .route("/v1/health", get(health))
            .route("/ready", get(ready))
            .route("/api/tags", get(tags))
            .route("/api/ps", get(ps))
            .route("/api/show", post(show))
            .route("/openapi.json", get(openapi))
            .route("/metrics", get(metrics));
        for route in FLEET {
            for path in route.paths {
                routes = routes.route(path, (route.router)());
            }
        }
        for route in ROUTES {
            let method = match route.method {
                "POST" => MethodFilter::POST,
                "DELETE" => MethodFilter::DELETE,
                _ => MethodFilter::GET,
            };
            for path in route.paths.iter().filter(|path| !OF_ALL.contains(path)) {
                routes = match *path {
                    "/api/version" => routes.route(path, get(ollama::version)),
                    path => routes.route(path, on(method, forward)),
                };
            }
        }
        guarded(with_page(routes.with_state(self.clone()), &gate), gate)
    }

    /// The name of the model for requests that name none: the only one, the first that is pinned, or the one that was asked for last.
    fn default_name(&self) -> ApiResult<String> {
        let cards = &self.params.cards;
        let only = cards.first().filter(|_| cards.len() == 1);
        let card = only.or_else(|| cards.iter().find(|card| card.is_pinned));
        let last = || {
            self.all()
                .into_iter()
                .max_by_key(|loaded| loaded.used)
                .map(|loaded| loaded.name)
        };
        let name = card.map(|card| card.name.clone()).or_else(last);
        name.ok_or_else(|| ApiError::field("model", "there is none, and several models are served"))
    }

    /// A model as it is. Only requests that compute something have one loaded: who looks how things are changes nothing.
    fn get_loaded(&self, name: &str) -> ApiResult<(Loaded, Busy)> {
        let name = &self.card(name)?.name;
        let how = match self.params.autoload {
            true => "a request for an answer of it loads it",
            false => "POST /models/load loads it",
        };
        self.find(name, false).ok_or_else(|| not_loaded(name, how))
    }
}

async fn models(State(fleet): State<Arc<Fleet>>) -> ApiResult {
    let all = blocking(move || Ok(fleet.list())).await?;
    Ok(json(&json!({ "object": "list", "data": all })))
}

async fn model(State(fleet): State<Arc<Fleet>>, Path(name): Path<String>) -> ApiResult {
    let name = fleet.card(&name)?.name.clone();
    let all = blocking(move || Ok(fleet.list())).await?;
    let found = all.into_iter().find(|entry| entry["id"] == name);
    found
        .map(|entry| json(&entry))
        .ok_or_else(|| ApiError::not_found("there is no such model"))
}

async fn load(State(fleet): State<Arc<Fleet>>, HttpBody(body): HttpBody) -> ApiResult {
    let name = named(body)?;
    fleet.get(&name, true).await?;
    Ok(json(&json!({ "success": true })))
}

async fn unload(State(fleet): State<Arc<Fleet>>, HttpBody(body): HttpBody) -> ApiResult {
    let name = named(body)?;
    match fleet.unload(&name).await? {
        true => Ok(json(&json!({ "success": true }))),
        false => Err(ApiError::invalid(format!("the model {name:?} is not loaded"))),
    }
}

/// The model that a body of [`LOAD_FIELDS`] names.
fn named(body: Map<String, Json>) -> ApiResult<String> {
    let mut fields = Fields::new(body, &[LOAD_FIELDS], false)?;
    let name = fields.text("model")?;
    fields.finish()?;
    name.ok_or_else(|| ApiError::field("model", "it is missing"))
}

/// What is counted of all models that are loaded, or of the one that is named.
async fn metrics(State(fleet): State<Arc<Fleet>>, request: Request) -> ApiResult {
    if in_query(&request, "model").is_some() {
        return forward(State(fleet), request).await;
    }
    let all = fleet.all();
    let schedulers = all
        .iter()
        .map(|loaded| (&loaded.app.served.scheduler, loaded.name.as_str()));
    Ok(exposition(&schedulers.collect::<Vec<_>>()))
}

async fn health(State(fleet): State<Arc<Fleet>>) -> ApiResult {
    for loaded in fleet.all() {
        check_health(&loaded.app.served.scheduler)?;
    }
    Ok(json(&json!({ "status": "ok" })))
}

async fn ready(State(fleet): State<Arc<Fleet>>) -> Response {
    readiness(fleet.is_open())
}

async fn tags(State(fleet): State<Arc<Fleet>>) -> ApiResult {
    let models = blocking(move || Ok(fleet.tags())).await?;
    Ok(json(&json!({ "models": models })))
}

async fn ps(State(fleet): State<Arc<Fleet>>) -> ApiResult {
    let models = blocking(move || Ok(fleet.running())).await?;
    Ok(json(&json!({ "models": models })))
}

/// Loads nothing: programs ask this of every model that there is.
async fn show(State(fleet): State<Arc<Fleet>>, HttpBody(body): HttpBody) -> ApiResult {
    let name = ollama::named(body)?.map_or_else(|| fleet.default_name(), Ok)?;
    let shown = blocking(move || fleet.shown(&name)).await?;
    Ok(json(&shown))
}

async fn openapi(State(fleet): State<Arc<Fleet>>) -> Response {
    json(&document(&fleet.params.build))
}

/// Has the model that is named answer.
async fn forward(State(fleet): State<Arc<Fleet>>, request: Request) -> ApiResult {
    let named_in_query = in_query(&request, "model");
    let may_load = match in_query(&request, "autoload").as_deref() {
        Some("true" | "1") => true,
        Some("false" | "0") => false,
        _ => fleet.params.autoload,
    };
    let (mut parts, body) = request.into_parts();
    let Bytes(bytes) = Bytes::from_request(Request::new(body), &()).await?;
    let name = match name_of(&bytes).or(named_in_query) {
        Some(name) => name,
        None => fleet.default_name()?,
    };
    let (loaded, busy) = match parts.method == Method::POST {
        true => fleet.get(&name, may_load).await?,
        false => fleet.get_loaded(&name)?,
    };
    // Parts of the path would stand there twice.
    let client = parts.extensions.remove::<Client>().unwrap_or_default();
    parts.extensions.clear();
    parts.extensions.insert(client);
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

/// A parameter of the query.
fn in_query(request: &Request, name: &str) -> Option<String> {
    let mut pairs = request
        .uri()
        .query()?
        .split('&')
        .filter_map(|pair| pair.split_once('='));
    let (_, value) = pairs.find(|(key, _)| *key == name)?;
    Some(percent_decode_str(value).decode_utf8_lossy().into_owned())
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
