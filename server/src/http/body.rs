//! Request bodies: JSON objects with limits on size and time.

use std::time::Duration;

use axum::extract::{FromRequest, Request};
use axum::http::header;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde_json::{Map, Value as Json};

use crate::api::{ApiError, ApiResult, shown};

/// Maximum size in bytes.
const MAX_LEN: usize = 16 << 20;
/// Maximum time until the body is complete.
const MAX_TIME: Duration = Duration::from_secs(30);

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
pub struct Bytes(pub axum::body::Bytes);

impl<S: Send + Sync> FromRequest<S> for Bytes {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> Result<Bytes, ApiError> {
        if let Some(encoding) = request.headers().get(header::CONTENT_ENCODING)
            && encoding != "identity"
        {
            return Err(ApiError::encoded());
        }
        let limited = Limited::new(request.into_body(), MAX_LEN);
        let collected = tokio::time::timeout(MAX_TIME, limited.collect()).await;
        let collected = collected.map_err(|_| ApiError::too_slow())?;
        let bytes = collected.map_err(|e| {
            if e.is::<LengthLimitError>() {
                ApiError::too_large(MAX_LEN)
            } else {
                ApiError::invalid("the request body was truncated")
            }
        })?;
        Ok(Bytes(bytes.to_bytes()))
    }
}

/// JSON value of any type; an empty body is null.
pub struct AnyBody(pub Json);

impl<S: Send + Sync> FromRequest<S> for AnyBody {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<AnyBody, ApiError> {
        let Bytes(bytes) = Bytes::from_request(request, state).await?;
        if bytes.is_empty() {
            return Ok(AnyBody(Json::Null));
        }
        // `serde_json` limits the nesting depth.
        let parsed = serde_json::from_slice(&bytes);
        let wrong = |e| ApiError::invalid(format!("the request body is not valid JSON: {e}"));
        parsed.map_err(wrong).map(AnyBody)
    }
}

/// Runs blocking work on tokio's blocking thread pool.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> ApiResult<T> + Send + 'static) -> ApiResult<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|_| Err(ApiError::server("internal error: the request handler panicked")))
}
