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

use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde_json::Value as Json;

/// A response of JSON.
pub fn json(value: &Json) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], value.to_string()).into_response()
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
