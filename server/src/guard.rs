//! Middleware for every request: authentication, CORS, request ids, and logging.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::extract::{Request, State};
use axum::handler::HandlerWithoutStateExt;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Redirect, Response};
use percent_encoding::percent_decode_str;
use tower::ServiceExt;
use tower_http::services::ServeDir;
use tracing::info;

use crate::api::ApiError;
use crate::chat::FileLimit;
use crate::http::{Charge, Client, Cutoff, StreamCutoff, cors, site, unique};
use crate::openapi::OPENAPI_ROUTES;
use crate::routes::ROUTES;
use crate::vertex::Vertex;
use crate::web::File;
use crate::{anthropic, ollama};

/// Access control, static files, and logging that apply to every request.
#[derive(Default)]
pub struct AccessPolicy {
    /// Accepted API keys; if empty, no authentication is required.
    pub keys: Vec<String>,
    /// Whether to serve the web UI.
    pub page: bool,
    /// Directory of static files, served at paths without a route.
    pub folder: Option<PathBuf>,
    /// Path prefix of all routes: empty, or with a leading and without a trailing slash.
    pub prefix: String,
    /// Allowed origins for cross-origin requests; `*` allows all.
    pub origins: Vec<String>,
    /// The server listens beyond this machine, so the origin check does not protect it.
    pub is_public: bool,
    /// Paths of Vertex AI, if it runs the server.
    pub vertex: Option<Vertex>,
    /// Maximum size of a medium in bytes, which requests contain as base64; 0 if no model reads media.
    /// [`router`](crate::router::router) sets it to 0 if its model reads text only.
    pub media_bytes: usize,
    /// Whether to log each request once its response has started ([`REQUEST_TARGET`]).
    pub logs_requests: bool,
}

impl AccessPolicy {
    /// Checks the headers that browsers set, on all routes.
    fn check_site(&self, request: &Request) -> Result<(), ApiError> {
        let (headers, listed) = (request.headers(), &self.origins);
        site::check_repeated(headers)?;
        site::check_site(request.method(), headers, listed)?;
        // Web pages have no API key, and a public server may have any host name. Health probes may also use any host
        // name.
        if self.is_public || !self.keys.is_empty() || self.is_probe(request.uri().path()) {
            return Ok(());
        }
        site::check_host(headers, request.uri(), listed)
    }

    /// Returns true for health checks, which need no API key.
    fn is_probe(&self, path: &str) -> bool {
        PUBLIC.contains(&path) || self.vertex.as_ref().is_some_and(|vertex| vertex.is_health(path))
    }

    /// Returns true for static files, which need no API key. Paths of routes never count as files.
    fn is_file(&self, method: &Method, path: &str) -> bool {
        let Some(folder) = &self.folder else {
            return false;
        };
        if method != Method::GET && method != Method::HEAD {
            return false;
        }
        let decoded = percent_decode_str(path).decode_utf8_lossy();
        let name = first_part(&decoded);
        let mut routes = ROUTES.iter().chain(OPENAPI_ROUTES);
        let is_route = routes.any(|route| route.paths.iter().any(|path| first_part(path) == name));
        !is_route && is_servable(folder, &decoded)
    }
}

/// Returns true for files in the directory that are neither hidden nor reached by a link out of the directory.
fn is_servable(folder: &Path, path: &str) -> bool {
    let is_plain = |part: &str| !part.contains(['\\', '\0']) && (!part.starts_with('.') || part == ".well-known");
    if !path.split('/').all(is_plain) {
        return false;
    }
    let file = folder.join(path.trim_start_matches('/'));
    let file = if file.is_dir() { file.join("index.html") } else { file };
    // Both paths have no links.
    let (Ok(file), Ok(folder)) = (file.canonicalize(), folder.canonicalize()) else {
        return false;
    };
    file.is_file() && file.starts_with(folder)
}

/// Returns the first part of a path.
fn first_part(path: &str) -> &str {
    path.split('/').nth(1).unwrap_or_default()
}

/// Target of the log records of requests. Their message contains the fields. Records have no prompts or
/// completions.
pub const REQUEST_TARGET: &str = "llama::request";

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// Paths that need no API key.
const PUBLIC: [&str; 3] = ["/health", "/v1/health", "/ready"];

/// Wraps routes in the middleware and adds static files and the path prefix.
pub fn guarded(routes: Router, policy: AccessPolicy) -> Router {
    let prefix = policy.prefix.clone();
    let routes = match &policy.vertex {
        Some(vertex) => vertex.added_to(routes),
        None => routes,
    };
    let routes = match &policy.folder {
        Some(folder) => with_files(routes, folder),
        None => routes.fallback(not_found),
    };
    let routes = routes.method_not_allowed_fallback(method_not_allowed);
    let routes = routes.layer(from_fn_with_state(Arc::new(policy), authorize));
    if prefix.is_empty() {
        return routes;
    }
    Router::new()
        .fallback(strip_prefix_and_route)
        .with_state((prefix.into(), routes))
}

/// Adds the files of a directory at all paths without a route.
fn with_files(routes: Router, folder: &Path) -> Router {
    let files = ServeDir::new(folder).call_fallback_on_method_not_allowed(true);
    let files = files.fallback(not_found.into_service());
    let folder: Arc<Path> = folder.into();
    routes.fallback(move |request: Request| async move {
        let path = percent_decode_str(request.uri().path()).decode_utf8_lossy();
        if !is_servable(&folder, &path) {
            return not_found(request).await.into_response();
        }
        files.oneshot(request).await.into_response()
    })
}

/// Strips the path prefix and dispatches the request.
async fn strip_prefix_and_route(State((prefix, routes)): State<(Arc<str>, Router)>, mut request: Request) -> Response {
    let uri = request.uri();
    let rest = uri.path().strip_prefix(&*prefix);
    let query = uri.query().map_or_else(String::new, |query| format!("?{query}"));
    match rest {
        // Redirect so that the relative URLs of the web UI resolve.
        Some("") => Redirect::temporary(&format!("{prefix}/{query}")).into_response(),
        Some(rest) if rest.starts_with('/') => match Uri::try_from(format!("{rest}{query}")) {
            Ok(uri) => {
                *request.uri_mut() = uri;
                let Ok(response) = routes.oneshot(request).await as Result<Response, Infallible>;
                response
            }
            Err(_) => ApiError::invalid("invalid path").into_response(),
        },
        _ => ApiError::not_found(format!("not found: all paths begin with {prefix}/")).into_response(),
    }
}

/// Routes of llama-server that this server does not implement: method (empty: any), path, reason.
const UNSUPPORTED: &[(&str, &str, &str)] = &[
    (
        "",
        "/tools",
        "tools are executed by clients; running commands for web pages would be unsafe",
    ),
    (
        "",
        "/cors-proxy",
        "proxying would give web pages access to this machine's network",
    ),
    ("", "/models/sse", "use /v1/models to list the models and their state"),
    (
        "",
        "/v1/stream",
        "a completion can be streamed only on the connection of its request",
    ),
    (
        "",
        "/v1/streams",
        "a completion can be streamed only on the connection of its request",
    ),
    ("", "/v1/audio", "speech synthesis is not supported"),
    ("", "/audio", "speech synthesis is not supported"),
    ("", "/v1/systemone", "models of this kind are not supported"),
    (
        "",
        "/models/load",
        "this server runs a single model; use --models-dir to serve several",
    ),
    (
        "",
        "/models/unload",
        "this server runs a single model; use --models-dir to serve several",
    ),
    (
        "POST",
        "/models",
        "download models with `llama pull`, or list them in --models-preset to download them on first use",
    ),
    ("DELETE", "/models", "remove models with `llama rm`"),
    (
        "",
        "/api/pull",
        "download models with `llama pull`, or list them in --models-preset to download them on first use",
    ),
    ("", "/api/delete", "remove models with `llama rm`"),
    (
        "",
        "/api/create",
        "edit GGUF files with `llama gguf` and `llama quantize`",
    ),
    (
        "",
        "/api/copy",
        "name models with --alias, or with `alias` in --models-preset",
    ),
    ("", "/api/push", "upload files with the tools of their hub"),
    (
        "POST",
        "/props",
        "set defaults with command-line options, or per request",
    ),
];

/// Returns the error for a path that only llama-server implements.
fn unsupported_route(request: &Request) -> Option<ApiError> {
    let (method, path) = (request.method(), request.uri().path());
    let is_it = |of: &str| {
        path.strip_prefix(of)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    let found = UNSUPPORTED
        .iter()
        .find(|(how, of, _)| is_it(of) && (how.is_empty() || method.as_str() == *how));
    found.map(|(_, of, why)| ApiError::unsupported(format!("{method} {of} is not supported: {why}")))
}

async fn not_found(request: Request) -> ApiError {
    let path = || request.uri().path().chars().take(128).collect::<String>();
    let unknown = || ApiError::not_found(format!("not found: {} {}", request.method(), path()));
    unsupported_route(&request).unwrap_or_else(unknown)
}

async fn method_not_allowed(request: Request) -> ApiError {
    unsupported_route(&request).unwrap_or_else(|| ApiError {
        status: StatusCode::METHOD_NOT_ALLOWED,
        ..ApiError::invalid(format!(
            "method {} not allowed; see the `allow` header",
            request.method()
        ))
    })
}

async fn authorize(State(policy): State<Arc<AccessPolicy>>, mut request: Request, next: Next) -> Response {
    let start = Instant::now();
    let id = request_id(request.headers());
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let origin = cors::origin(
        request.headers(),
        &policy.origins,
        policy.is_public || !policy.keys.is_empty(),
    );
    // Browsers send preflight requests without credentials.
    let asks = match &origin {
        Ok(Some(_)) => cors::preflight(&method, request.headers()),
        _ => None,
    };
    let site = policy.check_site(&request);
    let admitted = match (&origin, &site) {
        (Err(error), _) | (_, Err(error)) => Err(error.clone()),
        _ if policy.is_file(&method, &path) => Ok(Client::default()),
        _ if policy.is_probe(&path) => Ok(Client::default()),
        _ => admitted(&policy.keys, request.headers(), &path),
    };
    let request_memory = Arc::new(Charge::with_media(FileLimit::of_request(policy.media_bytes)));
    let mut response = match (asks, admitted) {
        (Some(response), _) => response,
        (None, Ok(client)) => {
            request.extensions_mut().insert(client);
            // Counts until the response starts, because `request_memory` lives as long.
            request.extensions_mut().insert(request_memory.clone());
            let cutoff = request.extensions_mut().remove();
            until_cutoff(next.run(request), cutoff).await
        }
        (None, Err(error)) => error.into_response(),
    };
    if let Some(error) = response.extensions_mut().remove::<ApiError>() {
        response = refusal(&path, &error, &id);
    }
    if let Ok(value) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    if let Ok(Some(origin)) = origin {
        cors::allow(&mut response, origin);
    }
    if policy.logs_requests {
        // Time from the request head to the response head.
        let ms = start.elapsed().as_secs_f64() * 1e3;
        let (method, status) = (method.as_str(), response.status().as_u16());
        info!(target: REQUEST_TARGET, id, method, path, status, ms, "{id} {method} {path} {status} {ms:.1} ms");
    }
    response
}

/// Waits for a response. A cutoff ends the request with an error, also after a stream has started.
async fn until_cutoff(response: impl Future<Output = Response>, cutoff: Option<Cutoff>) -> Response {
    let Some(mut cutoff) = cutoff else {
        return response.await;
    };
    let mut response = tokio::select! {
        response = response => response,
        () = cutoff.reached() => return Cutoff::error().into_response(),
    };
    if let Some(of_stream) = response.extensions_mut().remove::<StreamCutoff>() {
        of_stream.set(cutoff);
    }
    response
}

/// Returns an error response in the format of the API that `path` belongs to.
fn refusal(path: &str, error: &ApiError, request_id: &str) -> Response {
    if path.starts_with("/v1/messages") {
        error.response(&anthropic::error_json(error, request_id))
    } else if path.starts_with("/api/") {
        error.response(&ollama::error_json(error))
    } else {
        error.clone().into_response()
    }
}

/// Returns the client's request id if it is short and printable, otherwise a new id.
fn request_id(headers: &HeaderMap) -> String {
    let given = headers.get(REQUEST_ID).and_then(|id| id.to_str().ok());
    let is_word = |id: &&str| !id.is_empty() && id.len() <= 128 && id.bytes().all(|b| b.is_ascii_graphic());
    given.filter(is_word).map_or_else(|| unique("req-"), str::to_owned)
}

/// Authenticates a request and returns its client.
fn admitted(keys: &[String], headers: &HeaderMap, path: &str) -> Result<Client, ApiError> {
    if keys.is_empty() || File::at(path).is_some() {
        return Ok(Client::default());
    }
    let bearer = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let bearer = bearer
        .and_then(|value| value.split_once(' '))
        .map(|(_, key)| key.trim());
    let plain = headers.get(API_KEY).and_then(|value| value.to_str().ok());
    let given = plain.or(bearer).ok_or_else(ApiError::unauthorized)?;
    // Compare against all keys, so that timing does not reveal which key or prefix matched.
    let mut found = None;
    for (i, key) in keys.iter().enumerate() {
        if is_same(key.as_bytes(), given.as_bytes()) {
            found = Some(Client(i as u64 + 1));
        }
    }
    found.ok_or_else(ApiError::unauthorized)
}

fn is_same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |all, (a, b)| all | (a ^ b)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let pair = |(name, value): &(&'static str, &'static str)| {
            (HeaderName::from_static(name), HeaderValue::from_static(value))
        };
        pairs.iter().map(pair).collect()
    }

    #[test]
    fn outside_and_hidden_files_are_not_served() {
        let (folder, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (root, secret) = (folder.path(), outside.path().join("secret"));
        std::fs::create_dir_all(root.join("sub/.git")).unwrap();
        std::fs::create_dir_all(root.join(".well-known")).unwrap();
        for file in ["a.txt", ".env", "sub/index.html", "sub/.git/config", ".well-known/x"] {
            std::fs::write(root.join(file), "x").unwrap();
        }
        std::fs::write(&secret, "x").unwrap();
        #[cfg(unix)]
        {
            use std::os::unix::fs::symlink;
            symlink(&secret, root.join("link")).unwrap();
            symlink(outside.path(), root.join("dir")).unwrap();
            symlink(root.join("a.txt"), root.join("b.txt")).unwrap();
            assert!(is_servable(root, "/b.txt"));
        }
        for path in ["/a.txt", "/sub/", "/sub", "/sub/index.html", "/.well-known/x"] {
            assert!(is_servable(root, path), "{path}");
        }
        for path in [
            "/.env",
            "/sub/.git/config",
            "/link",
            "/dir/secret",
            "/../secret",
            "/none",
            "/",
            "/a.txt\0",
        ] {
            assert!(!is_servable(root, path), "{path}");
        }
    }

    #[test]
    fn request_id_must_be_printable() {
        assert_eq!(request_id(&headers(&[("x-request-id", "abc-1")])), "abc-1");
        for odd in ["", "a b"] {
            assert!(request_id(&headers(&[("x-request-id", odd)])).starts_with("req-"));
        }
        assert_ne!(request_id(&headers(&[])), request_id(&headers(&[])));
    }

    #[test]
    fn api_keys_are_compared_completely() {
        assert!(is_same(b"abc", b"abc"));
        assert!(!is_same(b"abc", b"abd") && !is_same(b"abc", b"ab") && !is_same(b"", b"a"));
    }
}
