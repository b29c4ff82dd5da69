//! HTTP layer: connections, middleware, request bodies and streaming responses.

mod app;
mod body;
mod cors;
mod listen;
mod stream;
mod tls;

pub use app::{AccessPolicy, App, Client, Log, RequestRecord, Shared, guarded};
pub use body::{AnyBody, Body, Bytes, blocking};
pub use cors::ANY as ANY_ORIGIN;
pub use listen::{ListenParams, Listener, serve};
pub use stream::{EventEncoder, stream};
pub use tls::{TlsError, tls};

use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use serde_json::Value as Json;

/// Creates a JSON response.
pub fn json(value: &Json) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], value.to_string()).into_response()
}

/// Adds a `warning` header that lists the ignored parts of the request, if any.
pub fn warned(mut response: Response, ignored_fields: &[String]) -> Response {
    let text = format!("299 - \"ignored: {}\"", ignored_fields.join("; "));
    if let Some(value) = HeaderValue::from_str(&text).ok().filter(|_| !ignored_fields.is_empty()) {
        response.headers_mut().insert(HeaderName::from_static("warning"), value);
    }
    response
}

/// Returns a unique id with the given prefix.
pub fn unique(prefix: &str) -> String {
    use std::hash::{BuildHasher, Hasher, RandomState};
    use std::sync::atomic::{AtomicU64, Ordering};
    static N: AtomicU64 = AtomicU64::new(0);
    let n = N.fetch_add(1, Ordering::Relaxed);
    // `RandomState` uses random keys.
    let random = RandomState::new().build_hasher().finish();
    format!("{prefix}{random:016x}{n:08x}")
}
