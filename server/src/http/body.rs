//! Bodies of requests: objects of JSON, as long as they are not too large and do not take too long to come.

use std::time::Duration;

use axum::extract::{FromRequest, Request};
use axum::http::header;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde_json::{Map, Value as Json};

use crate::api::{ApiError, ApiResult, shown};

/// Most bytes of a body.
const MAX_LEN: usize = 16 << 20;
/// Most time for it to come.
const MAX_TIME: Duration = Duration::from_secs(30);

/// The fields of a body.
pub struct Body(pub Map<String, Json>);

impl<S: Send + Sync> FromRequest<S> for Body {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Body, ApiError> {
        match AnyBody::from_request(request, state).await?.0 {
            Json::Object(fields) => Ok(Body(fields)),
            other => {
                let found = shown(&other);
                Err(ApiError::invalid(format!("the body is {found}, expected an object")))
            }
        }
    }
}

/// A body as it came.
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
        let bytes = collected.map_err(|e| match e.is::<LengthLimitError>() {
            true => ApiError::too_large(MAX_LEN),
            false => ApiError::invalid("the body did not come to its end"),
        })?;
        Ok(Bytes(bytes.to_bytes()))
    }
}

/// A body of any form; nothing at all is null.
pub struct AnyBody(pub Json);

impl<S: Send + Sync> FromRequest<S> for AnyBody {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<AnyBody, ApiError> {
        let Bytes(bytes) = Bytes::from_request(request, state).await?;
        if bytes.is_empty() {
            return Ok(AnyBody(Json::Null));
        }
        // Depth is bounded by the parser.
        let parsed = serde_json::from_slice(&bytes);
        let wrong = |e| ApiError::invalid(format!("the body is not JSON: {e}"));
        parsed.map_err(wrong).map(AnyBody)
    }
}

/// Does what takes long on a thread that nobody waits for.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> ApiResult<T> + Send + 'static) -> ApiResult<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|_| Err(ApiError::server("the request could not be worked on")))
}
