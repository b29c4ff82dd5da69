//! What handlers share, and what is asked of every request: who sends it, and what it is called.

use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::{Request, State};
use axum::handler::HandlerWithoutStateExt;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Redirect, Response};
use percent_encoding::percent_decode_str;
use tower::ServiceExt;
use tower_http::services::ServeDir;

use super::{cors, unique};
use crate::api::ApiError;
use crate::routes::ROUTES;
use crate::served::Served;
use crate::web::File;

/// What handlers share.
pub struct App {
    /// The model.
    pub served: Served,
}

/// What is asked of every request before it is answered, and who is told of it.
#[derive(Default)]
pub struct Gate {
    /// Keys of which requests have to name one; without any, all requests are taken.
    pub keys: Vec<String>,
    /// The page for browsers is served.
    pub page: bool,
    /// Files of this folder are served where there is no route.
    pub folder: Option<PathBuf>,
    /// All paths begin with this; it is empty, or begins with a slash and ends with none.
    pub prefix: String,
    /// Origins of pages that may ask, besides the server's own; `*` is any.
    pub origins: Vec<String>,
    /// Whoever reaches the server may ask it: it is not for this machine alone.
    pub for_all: bool,
    /// Is told of each request that was answered, or whose answer was begun.
    pub log: Option<Log>,
}

impl Gate {
    /// True of files of the folder: like the page they are for everybody. What routes may answer never is.
    fn is_file(&self, method: &Method, path: &str) -> bool {
        let Some(folder) = self
            .folder
            .as_ref()
            .filter(|_| method == Method::GET || method == Method::HEAD)
        else {
            return false;
        };
        let first = |path: &str| path.split('/').nth(1).unwrap_or_default().to_owned();
        let names: Vec<String> = ROUTES
            .iter()
            .flat_map(|route| route.paths.iter().map(|path| first(path)))
            .collect();
        let decoded = percent_decode_str(path).decode_utf8_lossy();
        let is_plain = |part: &str| !part.contains(['\\', '\0']) && part != "..";
        if names.contains(&first(&decoded)) || !decoded.split('/').all(is_plain) {
            return false;
        }
        let file = folder.join(decoded.trim_start_matches('/'));
        file.is_file() || file.join("index.html").is_file()
    }
}

/// Is told of requests.
pub type Log = Box<dyn Fn(&Record) + Send + Sync>;

/// What handlers get.
pub type Shared = Arc<App>;

/// Who sends a request: the number of its key, from 1; 0 where none is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Client(pub u64);

/// A request and what became of it. Nothing of what was said is in it.
#[derive(Clone, Debug)]
pub struct Record {
    /// Its id, from `x-request-id` or made here.
    pub id: String,
    /// GET, POST and so on.
    pub method: Method,
    /// Its path.
    pub path: String,
    /// The status of the response.
    pub status: StatusCode,
    /// From the request's head to the response's.
    pub time: Duration,
}

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// Paths that everybody may ask for.
const PUBLIC: [&str; 3] = ["/health", "/v1/health", "/ready"];

/// The routes, behind what is asked of every request.
pub fn guarded(routes: Router, gate: Gate) -> Router {
    let prefix = gate.prefix.clone();
    let routes = match &gate.folder {
        Some(folder) => {
            let files = ServeDir::new(folder).call_fallback_on_method_not_allowed(true);
            routes.fallback_service(files.fallback(nothing.into_service()))
        }
        None => routes.fallback(nothing),
    };
    let routes = routes.method_not_allowed_fallback(other_method);
    let routes = routes.layer(from_fn_with_state(Arc::new(gate), guard));
    match prefix.is_empty() {
        true => routes,
        false => Router::new().fallback(below).with_state((prefix.into(), routes)),
    }
}

/// Answers what is asked for below a prefix as it is without.
async fn below(State((prefix, routes)): State<(Arc<str>, Router)>, mut request: Request) -> Response {
    let uri = request.uri();
    let rest = uri.path().strip_prefix(&*prefix);
    let query = uri.query().map_or_else(String::new, |query| format!("?{query}"));
    match rest {
        // What the page asks for is relative to where it stands.
        Some("") => Redirect::temporary(&format!("{prefix}/{query}")).into_response(),
        Some(rest) if rest.starts_with('/') => match Uri::try_from(format!("{rest}{query}")) {
            Ok(uri) => {
                *request.uri_mut() = uri;
                let Ok(response) = routes.oneshot(request).await as Result<Response, Infallible>;
                response
            }
            Err(_) => ApiError::invalid("the path is none").into_response(),
        },
        _ => ApiError::not_found(format!("there is nothing here: all paths begin with {prefix}/")).into_response(),
    }
}

/// What llama-server answers and this does not: how, where, and why.
const LEFT_OUT: &[(&str, &str, &str)] = &[
    (
        "",
        "/tools",
        "functions are called by clients: a server that runs commands for pages runs them for any page",
    ),
    (
        "",
        "/cors-proxy",
        "nothing is fetched for pages: what this machine can reach is not theirs",
    ),
    (
        "",
        "/models/sse",
        "/v1/models tells which models there are and which are loaded",
    ),
    (
        "",
        "/v1/stream",
        "an answer is told to who asked for it, and ends with the connection",
    ),
    (
        "",
        "/v1/streams",
        "an answer is told to who asked for it, and ends with the connection",
    ),
    ("", "/v1/audio", "models run on text only"),
    ("", "/audio", "models run on text only"),
    ("", "/v1/systemone", "models of that kind are not run"),
    (
        "",
        "/models/load",
        "there is one model, which is loaded: --models-dir serves several",
    ),
    (
        "",
        "/models/unload",
        "there is one model, which stays: --models-dir serves several",
    ),
    (
        "POST",
        "/models",
        "models are fetched by `llama pull`, or when they are asked for by a name that --models-preset lists",
    ),
    ("DELETE", "/models", "models are removed by `llama rm`"),
    ("POST", "/props", "settings are those of the start, and of each request"),
];

/// Why this is not answered, if llama-server does.
fn left_out(request: &Request) -> Option<ApiError> {
    let (method, path) = (request.method(), request.uri().path());
    let is_it = |of: &str| {
        path.strip_prefix(of)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    let found = LEFT_OUT
        .iter()
        .find(|(how, of, _)| is_it(of) && (how.is_empty() || method.as_str() == *how));
    found.map(|(_, of, why)| ApiError::unsupported(format!("{method} {of} is not here: {why}")))
}

async fn nothing(request: Request) -> ApiError {
    let path = || request.uri().path().chars().take(128).collect::<String>();
    let unknown = || ApiError::not_found(format!("there is nothing at {} {}", request.method(), path()));
    left_out(&request).unwrap_or_else(unknown)
}

async fn other_method(request: Request) -> ApiError {
    left_out(&request).unwrap_or_else(|| ApiError {
        status: StatusCode::METHOD_NOT_ALLOWED,
        ..ApiError::invalid(format!(
            "{} is not what this is asked by: the header `allow` lists what is",
            request.method()
        ))
    })
}

async fn guard(State(gate): State<Arc<Gate>>, mut request: Request, next: Next) -> Response {
    let start = Instant::now();
    let id = request_id(request.headers());
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let origin = cors::origin(request.headers(), &gate.origins, gate.for_all || !gate.keys.is_empty());
    // Browsers ask without a key whether they may ask with one.
    let asks = match &origin {
        Ok(Some(_)) => cors::preflight(&method, request.headers()),
        _ => None,
    };
    let admitted = origin.clone().and_then(|_| match gate.is_file(&method, &path) {
        true => Ok(Client::default()),
        false => admitted(&gate.keys, request.headers(), &path),
    });
    let mut response = match (asks, admitted) {
        (Some(response), _) => response,
        (None, Ok(client)) => {
            request.extensions_mut().insert(client);
            next.run(request).await
        }
        (None, Err(error)) => error.into_response(),
    };
    if let Some(error) = response.extensions_mut().remove::<ApiError>() {
        response = crate::routes::refusal(&path, &error, &id);
    }
    if let Ok(value) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    if let Ok(Some(origin)) = origin {
        cors::allow(&mut response, origin);
    }
    if let Some(log) = &gate.log {
        log(&Record {
            id,
            method,
            path,
            status: response.status(),
            time: start.elapsed(),
        });
    }
    response
}

/// As the client calls it, if that is a short word, or a new one.
fn request_id(headers: &HeaderMap) -> String {
    let given = headers.get(REQUEST_ID).and_then(|id| id.to_str().ok());
    let is_word = |id: &&str| !id.is_empty() && id.len() <= 128 && id.bytes().all(|b| b.is_ascii_graphic());
    given.filter(is_word).map_or_else(|| unique("req-"), str::to_owned)
}

/// Who it is, if it may ask for that.
fn admitted(keys: &[String], headers: &HeaderMap, path: &str) -> Result<Client, ApiError> {
    if keys.is_empty() || PUBLIC.contains(&path) || File::at(path).is_some() {
        return Ok(Client::default());
    }
    let bearer = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let bearer = bearer
        .and_then(|value| value.split_once(' '))
        .map(|(_, key)| key.trim());
    let plain = headers.get(API_KEY).and_then(|value| value.to_str().ok());
    let given = plain.or(bearer).ok_or_else(ApiError::unauthorized)?;
    // All are looked at, so that time tells nothing of where a key is wrong.
    let find = |found, (i, key): (usize, &String)| match is_same(key.as_bytes(), given.as_bytes()) {
        true => Some(i),
        false => found,
    };
    let found = keys.iter().enumerate().fold(None, find);
    found.map(|i| Client(i as u64 + 1)).ok_or_else(ApiError::unauthorized)
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
    fn ids_are_words() {
        assert_eq!(request_id(&headers(&[("x-request-id", "abc-1")])), "abc-1");
        for odd in ["", "a b"] {
            assert!(request_id(&headers(&[("x-request-id", odd)])).starts_with("req-"));
        }
        assert_ne!(request_id(&headers(&[])), request_id(&headers(&[])));
    }

    #[test]
    fn keys_are_compared_whole() {
        assert!(is_same(b"abc", b"abc"));
        assert!(!is_same(b"abc", b"abd") && !is_same(b"abc", b"ab") && !is_same(b"", b"a"));
    }
}
