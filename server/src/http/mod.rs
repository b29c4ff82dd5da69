//! Requests in, responses out: connections, what is asked of all requests, and streams.

mod app;
mod body;
mod cors;
mod listen;
mod stream;
mod tls;

pub use app::{App, Client, Gate, Log, Record, Shared, guarded};
pub use body::{AnyBody, Body, Bytes, blocking};
pub use cors::ANY as ANY_ORIGIN;
pub use listen::{ListenParams, Listener, serve};
pub use stream::{Teller, stream};
pub use tls::{TlsError, tls};

use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use serde_json::Value as Json;

/// A response of JSON.
pub fn json(value: &Json) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], value.to_string()).into_response()
}

/// The response with the header `warning`, which tells what was left out of a request; there is none where nothing was.
pub fn warned(mut response: Response, left_out: &[String]) -> Response {
    let text = format!("299 - \"left out: {}\"", left_out.join("; "));
    if let Some(value) = HeaderValue::from_str(&text).ok().filter(|_| !left_out.is_empty()) {
        response.headers_mut().insert(HeaderName::from_static("warning"), value);
    }
    response
}

/// An id that no other has.
pub fn unique(prefix: &str) -> String {
    use std::hash::{BuildHasher, Hasher, RandomState};
    use std::sync::atomic::{AtomicU64, Ordering};
    static N: AtomicU64 = AtomicU64::new(0);
    let n = N.fetch_add(1, Ordering::Relaxed);
    // The standard library's hasher begins with random keys.
    let random = RandomState::new().build_hasher().finish();
    format!("{prefix}{random:016x}{n:08x}")
}
