//! HTTP layer: connections, request bodies, and streaming responses.

mod body;
mod charge;
pub(crate) mod cors;
mod form;
mod idle;
mod listen;
mod parse;
mod places;
pub(crate) mod site;
mod stream;
mod tls;

pub use body::{AnyBody, Body, Bytes, blocking};
pub(crate) use charge::Charge;
pub use cors::{ANY as ANY_ORIGIN, is_entry as is_origin_entry};
pub use form::Form;
pub(crate) use listen::Cutoff;
pub use listen::{ListenParams, Listener, serve};
pub(crate) use parse::{BYTE_ORDER_MARK, json_error};
pub(crate) use stream::StreamCutoff;
pub use stream::{EventEncoder, stream};
pub use tls::{TlsError, tls};

use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use serde_json::Value as Json;

/// Client identity: the 1-based index of its API key, or 0 without authentication.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Client(pub u64);

/// Creates a JSON response.
pub fn json(value: &Json) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], value.to_string()).into_response()
}

/// Adds a `warning` header that lists the ignored parts of the request, if any.
pub fn warned(mut response: Response, ignored_fields: &[String]) -> Response {
    if ignored_fields.is_empty() {
        return response;
    }
    let text = format!("299 - \"ignored: {}\"", ignored_fields.join("; "));
    if let Ok(value) = HeaderValue::from_str(&text) {
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
