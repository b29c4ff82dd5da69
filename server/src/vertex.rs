//! Google's Vertex AI: one route that answers several requests of other routes, as in llama-server.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, Uri, header};
use axum::response::Response;
use axum::routing::{Router, get, post};
use axum::{Extension, RequestExt};
use futures_util::future::join_all;
use http_body_util::BodyExt;
use serde_json::{Map, Value as Json, json};
use tower::ServiceExt;

use crate::api::{ApiError, ApiResult};
use crate::http::{Body as Fields, Charge, Client, json as json_response};
use crate::openapi::OPENAPI_ROUTES;
use crate::routes::{PAGE, ROUTES};

/// Field of an instance that selects its route.
const FORMAT: &str = "@requestFormat";
/// Maximum number of instances of a request.
const MAX_INSTANCES: usize = 128;

/// Paths that Vertex AI calls for health checks and predictions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vertex {
    predict: String,
    health: Option<String>,
}

impl Vertex {
    /// Creates the settings. An empty `health` means `/health`.
    ///
    /// # Errors
    /// Returns the reason if a path cannot be a route.
    pub fn new(predict: &str, health: &str) -> Result<Vertex, String> {
        let is_path = |path: &str| path.starts_with('/') && path.len() > 1 && !path.contains(['{', '}', '*', ':', '?']);
        let is_known = |path: &str| {
            let of_models = ROUTES.iter().flat_map(|route| route.paths);
            let of_document = OPENAPI_ROUTES.iter().flat_map(|route| route.paths);
            let of_page = PAGE.iter().flat_map(|route| route.paths);
            let is_of_pool = path.starts_with("/models/");
            is_of_pool || of_models.chain(of_document).chain(of_page).any(|known| *known == path)
        };
        if !is_path(predict) || is_known(predict) || predict == health {
            return Err(format!(
                "expected a path without a route, such as /predict, found {predict:?}"
            ));
        }
        let is_new = !health.is_empty() && !is_known(health);
        if is_new && !is_path(health) {
            return Err(format!("expected a path such as /health, found {health:?}"));
        }
        Ok(Vertex {
            predict: predict.to_owned(),
            health: is_new.then(|| health.to_owned()),
        })
    }

    /// Returns true for the path of the health check, which needs no API key.
    pub fn is_health(&self, path: &str) -> bool {
        self.health.as_deref() == Some(path)
    }

    /// Adds the routes.
    pub fn added_to(&self, routes: Router) -> Router {
        let shared = Arc::new(Predictor {
            routes: routes.clone(),
            paths: paths(),
        });
        let routes = routes.route(&self.predict, post(predict).with_state(shared));
        match &self.health {
            None => routes,
            Some(path) => {
                let inner = routes.clone();
                let health = move || async move {
                    let Ok(response) = inner.oneshot(request("/health", Body::empty())).await as Result<_, Infallible>;
                    response
                };
                routes.route(path, get(health))
            }
        }
    }
}

/// Routes of the server, and the names that instances select them by.
struct Predictor {
    routes: Router,
    paths: HashMap<String, &'static str>,
}

/// Returns the paths that instances can select, by path and by name.
fn paths() -> HashMap<String, &'static str> {
    let mut paths = HashMap::new();
    let of_posts = ROUTES.iter().filter(|route| route.method == "POST");
    for path in of_posts
        .flat_map(|route| route.paths)
        .filter(|path| !path.contains('{'))
    {
        paths.insert((*path).to_owned(), *path);
        paths.entry(name_of(path)).or_insert(*path);
    }
    paths
}

/// Returns the name of a path: `chatCompletions` for `/v1/chat/completions`.
fn name_of(path: &str) -> String {
    let path = path.strip_prefix("/v1").unwrap_or(path);
    let mut name = String::new();
    for word in path.split(['/', '-', '_']).filter(|word| !word.is_empty()) {
        let mut letters = word.chars();
        match letters.next() {
            Some(first) if !name.is_empty() => name.push(first.to_ascii_uppercase()),
            first => name.extend(first),
        }
        name.push_str(letters.as_str());
    }
    name
}

/// Handles the predict route. The responses have the order of the instances; a failed one is an error object.
async fn predict(
    State(predictor): State<Arc<Predictor>>,
    Extension(client): Extension<Client>,
    request: Request,
) -> ApiResult {
    let charge = request.extensions().get::<Arc<Charge>>().cloned().unwrap_or_default();
    let headers = request.headers().clone();
    let Fields(mut body) = request.extract().await?;
    let Some(Json::Array(instances)) = body.remove("instances") else {
        return Err(ApiError::field("instances", "expected a list of objects"));
    };
    if instances.len() > MAX_INSTANCES {
        let why = format_args!("expected at most {MAX_INSTANCES}, found {}", instances.len());
        return Err(ApiError::field("instances", why));
    }
    let answers = instances
        .into_iter()
        .map(|instance| predictor.answer(instance, &headers, client, &charge));
    Ok(json_response(&json!({ "predictions": join_all(answers).await })))
}

impl Predictor {
    async fn answer(&self, instance: Json, headers: &HeaderMap, client: Client, charge: &Arc<Charge>) -> Json {
        let (path, body) = match self.dispatched(instance) {
            Ok(dispatched) => dispatched,
            Err(error) => return error.to_json(),
        };
        let mut request = request(path, Body::from(body.to_string()));
        *request.method_mut() = Method::POST;
        *request.headers_mut() = headers.clone();
        request.headers_mut().remove(header::CONTENT_LENGTH);
        request.extensions_mut().insert(client);
        request.extensions_mut().insert(charge.clone());
        let Ok(response) = self.routes.clone().oneshot(request).await as Result<Response, Infallible>;
        value_of(response).await
    }

    /// Returns the path and the body of an instance.
    fn dispatched(&self, instance: Json) -> ApiResult<(&'static str, Json)> {
        let Json::Object(mut fields) = instance else {
            return Err(ApiError::field("instances", "expected a list of objects"));
        };
        let Some(Json::String(format)) = fields.remove(FORMAT) else {
            return Err(ApiError::field(FORMAT, "expected the name or the path of a route"));
        };
        let path = self.paths.get(&format).ok_or_else(|| {
            let format: String = format.chars().take(64).collect();
            ApiError::field(
                FORMAT,
                format_args!("unknown route {format:?}; expected a name such as chatCompletions, or a path"),
            )
        })?;
        without_stream(&mut fields, path);
        Ok((path, fields.into()))
    }
}

/// Disables streaming, which predictions do not support.
fn without_stream(fields: &mut Map<String, Json>, path: &str) {
    let streams_by_default = path.starts_with("/api/");
    if fields.contains_key("stream") || streams_by_default {
        fields.insert("stream".to_owned(), false.into());
    }
}

/// Returns the body of a response: JSON, or its text.
async fn value_of(response: Response) -> Json {
    if let Some(error) = response.extensions().get::<ApiError>() {
        return error.to_json();
    }
    match response.into_body().collect().await {
        Ok(collected) => {
            let bytes = collected.to_bytes();
            serde_json::from_slice(&bytes).unwrap_or_else(|_| String::from_utf8_lossy(&bytes).into())
        }
        Err(_) => ApiError::server("the response was cut off").to_json(),
    }
}

fn request(path: &'static str, body: Body) -> Request {
    let mut request = Request::new(body);
    *request.uri_mut() = Uri::from_static(path);
    request
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_are_named_in_camel_case() {
        for (path, name) in [
            ("/v1/chat/completions", "chatCompletions"),
            ("/apply-template", "applyTemplate"),
            ("/v1/messages/count_tokens", "messagesCountTokens"),
            ("/tokenize", "tokenize"),
        ] {
            assert_eq!(name_of(path), name);
            assert!(paths().contains_key(name) && paths().contains_key(path), "{name}");
        }
        assert_eq!(paths()["chatCompletions"], "/v1/chat/completions");
    }

    #[test]
    fn vertex_paths_must_be_free() {
        for (predict, health) in [
            ("/v1/chat/completions", ""),
            ("/openapi.json", ""),
            ("/models/load", ""),
            ("/", ""),
            ("predict", ""),
            ("/{x}", ""),
            ("/predict", "ready"),
            ("/p", "/p"),
        ] {
            assert!(Vertex::new(predict, health).is_err(), "{predict} {health}");
        }
        let vertex = Vertex::new("/predict", "/isalive").unwrap();
        assert!(vertex.is_health("/isalive") && !vertex.is_health("/predict"));
        assert!(!Vertex::new("/predict", "/health").unwrap().is_health("/health"));
    }
}
