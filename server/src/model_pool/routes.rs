//! Routing for several models: aggregated routes, and dispatch by model name.

use std::convert::Infallible;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes as Data};
use axum::extract::{FromRequest, Path, Request, State};
use axum::http::{HeaderMap, Method, header};
use axum::response::Response;
use axum::routing::{MethodFilter, get, on, post};
use futures_util::StreamExt;
use percent_encoding::percent_decode_str;
use serde::de::{IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value as Json, json};
use tower::ServiceExt;

use super::activity::InFlightGuard;
use super::pool::{Loaded, ModelPool, not_loaded};
use crate::api::{ApiError, ApiResult, Field, Fields};
use crate::guard::{AccessPolicy, guarded};
use crate::http::{Body as HttpBody, Bytes, Charge, Client, Form, blocking, json};
use crate::native::{check_health, exposition, metrics_of, readiness};
use crate::ollama::{self, KeepAlive, UnloadsModel};
use crate::openai;
use crate::openapi::{Document, OPENAPI_ROUTES, OpenApi};
use crate::router::{with, with_page};
use crate::routes::{ROUTES, Route};

/// Paths that are answered for all models, whether or not they are loaded.
const AGGREGATED: [&str; 10] = [
    "/v1/models",
    "/models",
    "/v1/models/{name}",
    "/health",
    "/v1/health",
    "/ready",
    "/api/tags",
    "/api/ps",
    "/api/show",
    "/metrics",
];

/// Fields of `/models/load` and `/models/unload`.
const LOAD_FIELDS: &[Field] = &[Field::text("model", "Model name.")];

/// Routes that exist only if several models are served.
pub const POOL_ROUTES: &[Route<Arc<ModelPool>>] = &[
    Route {
        method: "POST",
        paths: &["/models/load"],
        doc: "Loads a model and returns when it is ready; only with several models.",
        fields: &[LOAD_FIELDS],
        sampling: false,
        query: &[],
        router: || post(load),
    },
    Route {
        method: "POST",
        paths: &["/models/unload"],
        doc: "Unloads a model; status 409 if it is in use. Only with several models.",
        fields: &[LOAD_FIELDS],
        sampling: false,
        query: &[],
        router: || post(unload),
    },
];

impl ModelPool {
    /// Returns the complete router, including middleware.
    pub fn routes(self: &Arc<ModelPool>, policy: AccessPolicy) -> Router {
        let mut routes: Router<Arc<ModelPool>> = Router::new()
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
        routes = with(routes, POOL_ROUTES);
        for route in ROUTES {
            let method = match route.method {
                "POST" => MethodFilter::POST,
                "DELETE" => MethodFilter::DELETE,
                _ => MethodFilter::GET,
            };
            for path in route.paths.iter().filter(|path| !AGGREGATED.contains(path)) {
                routes = match *path {
                    "/api/version" => routes.route(path, get(ollama::version)),
                    path => routes.route(path, on(method, forward)),
                };
            }
        }
        guarded(with_page(routes.with_state(self.clone()), &policy), policy)
    }

    /// Returns the model for requests without a model name: the only one, else the first pinned one, else the
    /// most recently used one.
    fn default_name(&self) -> ApiResult<String> {
        let models = &self.params.models;
        let model_entry = match &models[..] {
            [only] => Some(only),
            models => models.iter().find(|model_entry| model_entry.is_pinned),
        };
        let last = || {
            self.all()
                .into_iter()
                .max_by_key(|loaded| loaded.used)
                .map(|loaded| loaded.name)
        };
        let name = model_entry.map(|model_entry| model_entry.name.clone()).or_else(last);
        name.ok_or_else(|| ApiError::field("model", "missing; required because several models are served"))
    }

    /// Returns a loaded model. Only completion requests load models; requests for state do not.
    fn get_loaded(&self, name: &str) -> ApiResult<(Loaded, InFlightGuard)> {
        let name = &self.model_entry(name)?.name;
        let how = if self.params.autoload {
            "a completion request loads it"
        } else {
            "load it with POST /models/load"
        };
        self.find(name, false).ok_or_else(|| not_loaded(name, how))
    }
}

async fn models(State(pool): State<Arc<ModelPool>>, headers: HeaderMap) -> ApiResult {
    let all = blocking(move || Ok(pool.list())).await?;
    Ok(json(&openai::list_json(all, &headers)))
}

async fn model(State(pool): State<Arc<ModelPool>>, Path(name): Path<String>, headers: HeaderMap) -> ApiResult {
    let name = pool.model_entry(&name)?.name.clone();
    let all = blocking(move || Ok(pool.list())).await?;
    let found = all.into_iter().find(|entry| entry["id"] == name);
    found
        .map(|entry| json(&openai::entry_json(entry, &headers)))
        .ok_or_else(|| ApiError::not_found("unknown model"))
}

async fn load(State(pool): State<Arc<ModelPool>>, HttpBody(body): HttpBody) -> ApiResult {
    let name = named(body)?;
    pool.get(&name, true).await?;
    Ok(json(&json!({ "success": true })))
}

async fn unload(State(pool): State<Arc<ModelPool>>, HttpBody(body): HttpBody) -> ApiResult {
    let name = named(body)?;
    if !pool.unload(&name).await? {
        return Err(ApiError::invalid(format!("the model {name:?} is not loaded")));
    }
    Ok(json(&json!({ "success": true })))
}

/// Reads the model name from a body with [`LOAD_FIELDS`].
fn named(body: Map<String, Json>) -> ApiResult<String> {
    let mut fields = Fields::new(body, &[LOAD_FIELDS], false)?;
    let name = fields.text("model")?;
    fields.finish()?;
    name.ok_or_else(|| ApiError::field("model", "missing; expected a model name"))
}

/// Returns the metrics of all loaded models, or of the model named in the query.
async fn metrics(State(pool): State<Arc<ModelPool>>, request: Request) -> ApiResult {
    if in_query(&request, "model").is_some() {
        return forward(State(pool), request).await;
    }
    let all = pool.measured();
    match &all[..] {
        [only] if pool.n_models() == 1 => Ok(metrics_of(only)),
        all => Ok(exposition(all)),
    }
}

async fn health(State(pool): State<Arc<ModelPool>>) -> ApiResult {
    for loaded in pool.all() {
        check_health(&loaded.app.service.scheduler)?;
    }
    Ok(json(&json!({ "status": "ok" })))
}

async fn ready(State(pool): State<Arc<ModelPool>>) -> Response {
    readiness(pool.is_open())
}

async fn tags(State(pool): State<Arc<ModelPool>>) -> ApiResult {
    let models = blocking(move || Ok(pool.tags())).await?;
    Ok(json(&json!({ "models": models })))
}

async fn ps(State(pool): State<Arc<ModelPool>>) -> ApiResult {
    let models = blocking(move || Ok(pool.running())).await?;
    Ok(json(&json!({ "models": models })))
}

/// Returns the details of a model without loading it, because clients query every model in the list.
async fn show(State(pool): State<Arc<ModelPool>>, HttpBody(body): HttpBody) -> ApiResult {
    let name = ollama::named(body)?.map_or_else(|| pool.default_name(), Ok)?;
    let details = blocking(move || pool.details(&name)).await?;
    Ok(json(&details))
}

async fn openapi(State(pool): State<Arc<ModelPool>>) -> Response {
    static DOCUMENT: OnceLock<Document> = OnceLock::new();
    let document = || {
        let document = OpenApi::default().with(ROUTES).with(OPENAPI_ROUTES).with(POOL_ROUTES);
        document.finish(&pool.params.build)
    };
    DOCUMENT.get_or_init(|| Document::new(&document())).response()
}

/// Dispatches a request to the model that it names.
async fn forward(State(pool): State<Arc<ModelPool>>, request: Request) -> ApiResult {
    let named_in_query = in_query(&request, "model");
    let may_load = match in_query(&request, "autoload").as_deref() {
        Some("true" | "1") => true,
        Some("false" | "0") => false,
        _ => pool.params.autoload,
    };
    let (mut parts, body) = request.into_parts();
    let charge = parts.extensions.get::<Arc<Charge>>().cloned().unwrap_or_default();
    let mut of_body = Request::new(body);
    of_body.extensions_mut().insert(charge.clone());
    let Bytes(bytes) = Bytes::from_request(of_body, &()).await?;
    let named = match multer::parse_boundary(content_type(&parts.headers)) {
        Ok(boundary) => Named::of_form(bytes.clone(), boundary).await?,
        Err(_) => Named::of(&bytes),
    };
    let name = match named
        .model
        .or(named.name)
        .filter(|name| !name.is_empty())
        .or(named_in_query)
    {
        Some(name) => name,
        None => pool.default_name()?,
    };
    let (loaded, in_flight) = if parts.method == Method::POST {
        pool.get(&name, may_load).await?
    } else {
        match pool.get_loaded(&name) {
            // The state of a sleeping model is known, and does not wake it.
            Err(error) => match pool.slept(&name) {
                Some(slept) if parts.uri.path() == "/props" => return Ok(json(&slept.props)),
                Some(slept) if parts.uri.path() == "/metrics" => return Ok(metrics_of(&slept.measured)),
                _ => return Err(error),
            },
            Ok(found) => found,
        }
    };
    let keep_alive = named.keep_alive.as_ref().and_then(KeepAlive::of_json);
    keep_alive.iter().for_each(|time| loaded.activity.keep(*time));
    // The inner router would append its path parameters to the existing ones.
    let client = parts.extensions.remove::<Client>().unwrap_or_default();
    parts.extensions.clear();
    parts.extensions.insert(client);
    parts.extensions.insert(charge);
    if keep_alive == Some(KeepAlive::For(Duration::ZERO)) && !pool.is_pinned(&loaded) {
        parts.extensions.insert(UnloadsModel);
    }
    let request = Request::from_parts(parts, Body::from(bytes));
    let Ok(response) = loaded.routes.oneshot(request).await as Result<Response, Infallible>;
    let (head, body) = response.into_parts();
    // Keep the model loaded until the response body ends.
    let body = body.into_data_stream().map(move |piece| {
        let _ = &in_flight;
        piece
    });
    Ok(Response::from_parts(head, Body::from_stream(body)))
}

/// Returns a query parameter.
fn in_query(request: &Request, name: &str) -> Option<String> {
    let mut pairs = request
        .uri()
        .query()?
        .split('&')
        .filter_map(|pair| pair.split_once('='));
    let (_, value) = pairs.find(|(key, _)| *key == name)?;
    Some(percent_decode_str(value).decode_utf8_lossy().into_owned())
}

/// Fields of a request body that concern the pool.
#[derive(Default, serde::Deserialize)]
struct Named {
    model: Option<String>,
    name: Option<String>,
    #[serde(default, deserialize_with = "scalar")]
    keep_alive: Option<Json>,
}

/// Reads a number or a text. Other values are skipped, because they could need much memory.
fn scalar<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Json>, D::Error> {
    struct Scalar;

    impl<'de> Visitor<'de> for Scalar {
        type Value = Option<Json>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a number or a text")
        }

        fn visit_i64<E>(self, value: i64) -> Result<Option<Json>, E> {
            Ok(Some(value.into()))
        }

        fn visit_u64<E>(self, value: u64) -> Result<Option<Json>, E> {
            Ok(Some(value.into()))
        }

        fn visit_f64<E>(self, value: f64) -> Result<Option<Json>, E> {
            Ok(Some(value.into()))
        }

        fn visit_str<E>(self, value: &str) -> Result<Option<Json>, E> {
            Ok(Some(value.into()))
        }

        fn visit_bool<E>(self, _: bool) -> Result<Option<Json>, E> {
            Ok(None)
        }

        fn visit_unit<E>(self) -> Result<Option<Json>, E> {
            Ok(None)
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Option<Json>, A::Error> {
            while list.next_element::<IgnoredAny>()?.is_some() {}
            Ok(None)
        }

        fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Option<Json>, A::Error> {
            while object.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
            Ok(None)
        }
    }

    deserializer.deserialize_any(Scalar)
}

fn content_type(headers: &HeaderMap) -> &str {
    let value = headers.get(header::CONTENT_TYPE);
    value.and_then(|value| value.to_str().ok()).unwrap_or_default()
}

impl Named {
    /// Reads the model of a multipart form.
    async fn of_form(body: Data, boundary: String) -> ApiResult<Named> {
        let mut form = Form::parse(body, boundary).await?;
        Ok(Named {
            model: form.text("model")?,
            ..Named::default()
        })
    }

    /// Reads the fields; other bodies have none.
    fn of(body: &[u8]) -> Named {
        serde_json::from_slice(body).unwrap_or_default()
    }
}
