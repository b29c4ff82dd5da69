//! What handlers share, and what is asked of every request: who sends it, and what it is called.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};

use super::{cors, unique};
use crate::api::ApiError;
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
    /// Origins of pages that may ask, besides the server's own; `*` is any.
    pub origins: Vec<String>,
    /// Is told of each request that was answered, or whose answer was begun.
    pub log: Option<Log>,
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
    let guard = from_fn_with_state(Arc::new(gate), guard);
    routes.fallback(nothing).layer(guard)
}

async fn nothing(request: Request) -> ApiError {
    let path: String = request.uri().path().chars().take(128).collect();
    ApiError::not_found(format!("there is nothing at {} {path}", request.method()))
}

async fn guard(State(gate): State<Arc<Gate>>, mut request: Request, next: Next) -> Response {
    let start = Instant::now();
    let id = request_id(request.headers());
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let origin = cors::origin(request.headers(), &gate.origins);
    // Browsers ask without a key whether they may ask with one.
    let asks = match &origin {
        Ok(Some(_)) => cors::preflight(&method, request.headers()),
        _ => None,
    };
    let admitted = origin
        .clone()
        .and_then(|_| admitted(&gate.keys, request.headers(), &path));
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
