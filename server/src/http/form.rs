//! Multipart forms: requests with files.

use std::convert::Infallible;

use axum::body::Bytes as Data;
use axum::extract::{FromRequest, Request};
use axum::http::header;
use futures_util::stream::once;
use multer::Multipart;

use super::body::Bytes;
use crate::api::{ApiError, ApiResult};

/// Maximum number of fields in a form.
const MAX_FIELDS: usize = 64;

/// Fields of a `multipart/form-data` body, in order.
pub struct Form(Vec<(String, Data)>);

impl<S: Send + Sync> FromRequest<S> for Form {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Form, ApiError> {
        let content_type = request.headers().get(header::CONTENT_TYPE);
        let content_type = content_type.and_then(|value| value.to_str().ok()).unwrap_or_default();
        let boundary = multer::parse_boundary(content_type);
        let boundary = boundary.map_err(|_| ApiError::invalid("expected a body of type multipart/form-data"))?;
        let Bytes(bytes) = Bytes::from_request(request, state).await?;
        Form::parse(bytes, boundary).await
    }
}

impl Form {
    /// Parses a complete body.
    pub async fn parse(body: Data, boundary: String) -> ApiResult<Form> {
        let damaged = |e: multer::Error| ApiError::invalid(format!("invalid multipart form: {e}"));
        let body = once(async { Ok::<_, Infallible>(body) });
        let mut parts = Multipart::new(body, boundary);
        let mut fields = Vec::new();
        while let Some(part) = parts.next_field().await.map_err(damaged)? {
            if fields.len() == MAX_FIELDS {
                return Err(ApiError::invalid(format!("the form has more than {MAX_FIELDS} fields")));
            }
            let name = part.name().unwrap_or_default().to_owned();
            fields.push((name, part.bytes().await.map_err(damaged)?));
        }
        Ok(Form(fields))
    }

    /// Removes and returns the first field with this name.
    pub fn take(&mut self, name: &str) -> Option<Data> {
        let at = self.0.iter().position(|(known, _)| known == name)?;
        Some(self.0.remove(at).1)
    }

    /// Removes and returns the text of the first field with this name; `None` if the text is empty.
    ///
    /// # Errors
    /// Returns status 400 if the field is not UTF-8.
    pub fn text(&mut self, name: &str) -> ApiResult<Option<String>> {
        let Some(bytes) = self.take(name).filter(|bytes| !bytes.is_empty()) else {
            return Ok(None);
        };
        let text = String::from_utf8(bytes.into());
        text.map(Some).map_err(|_| ApiError::field(name, "expected UTF-8"))
    }

    /// Returns the names of the remaining fields.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(name, _)| name.as_str())
    }
}
