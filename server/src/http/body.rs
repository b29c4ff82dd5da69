//! Request bodies: JSON objects with limits on size, memory, and time.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body as Incoming, Bytes as Data};
use axum::extract::{FromRequest, Request};
use axum::http::header;
use http_body_util::BodyExt;
use serde_json::{Map, Value as Json};
use tokio::sync::Semaphore;

use super::charge::Charge;
use super::parse::parse;
use crate::api::{ApiError, ApiResult, shown};
use crate::wanted::Waiting;

/// Maximum time until the body is complete.
const MAX_TIME: Duration = Duration::from_secs(30);

/// Maximum length of a body that is parsed immediately. Longer bodies would delay other connections.
const MAX_SMALL: usize = 64 << 10;
/// Number of long bodies that are parsed at the same time.
static PARSERS: Semaphore = Semaphore::const_new(2);

/// Fields of a JSON object.
pub struct Body(pub Map<String, Json>);

impl<S: Send + Sync> FromRequest<S> for Body {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Body, ApiError> {
        match AnyBody::from_request(request, state).await?.0 {
            Json::Object(fields) => Ok(Body(fields)),
            other => {
                let found = shown(&other);
                Err(ApiError::invalid(format!(
                    "expected a JSON object in the request body, found {found}"
                )))
            }
        }
    }
}

/// Raw body.
pub struct Bytes(pub Data);

impl<S: Send + Sync> FromRequest<S> for Bytes {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> Result<Bytes, ApiError> {
        if let Some(encoding) = request.headers().get(header::CONTENT_ENCODING)
            && encoding != "identity"
        {
            return Err(ApiError::encoded());
        }
        let charge = charge_of(&request);
        let collected = tokio::time::timeout(MAX_TIME, collect(request.into_body(), &charge)).await;
        collected.map_err(|_| ApiError::too_slow())?.map(Bytes)
    }
}

/// Returns the memory of the request, which the middleware created.
fn charge_of(request: &Request) -> Arc<Charge> {
    request.extensions().get().cloned().unwrap_or_default()
}

async fn collect(mut body: Incoming, charge: &Charge) -> ApiResult<Data> {
    let mut collected = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| ApiError::invalid("the request body was truncated"))?;
        let Ok(data) = frame.into_data() else { continue };
        if collected.len() + data.len() > charge.max_body() {
            return Err(ApiError::too_large(charge.max_body()));
        }
        charge.add(data.len())?;
        collected.extend_from_slice(&data);
    }
    Ok(collected.into())
}

/// JSON value of any type; an empty body is null.
pub struct AnyBody(pub Json);

impl<S: Send + Sync> FromRequest<S> for AnyBody {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<AnyBody, ApiError> {
        let charge = charge_of(&request);
        let Bytes(bytes) = Bytes::from_request(request, state).await?;
        if bytes.is_empty() {
            return Ok(AnyBody(Json::Null));
        }
        if bytes.len() <= MAX_SMALL {
            return parse(&bytes, &charge).map(AnyBody);
        }
        // The semaphore is never closed.
        let _permit = PARSERS.acquire().await;
        blocking(move || parse(&bytes, &charge).map(AnyBody)).await
    }
}

/// Runs blocking work on tokio's blocking thread pool.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> ApiResult<T> + Send + 'static) -> ApiResult<T> {
    // If the client disconnects, this guard is dropped with the future, which cancels the work.
    let waiting = Waiting::new();
    let done = tokio::task::spawn_blocking(waiting.follow(work)).await;
    done.unwrap_or_else(|_| Err(ApiError::server("internal error: the request handler panicked")))
}
