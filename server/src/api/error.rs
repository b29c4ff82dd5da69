//! What is wrong with a request, as clients of the several interfaces expect it.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value as Json, json};

use crate::scheduler::{CommandError, SubmitError};

/// A request that is not answered, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct ApiError {
    /// HTTP's status.
    pub status: StatusCode,
    /// OpenAI's word for the kind of error.
    pub kind: &'static str,
    /// A sentence.
    pub message: String,
    /// The field that it is about.
    pub param: Option<String>,
    /// OpenAI's word for the very error.
    pub code: Option<&'static str>,
    /// Seconds after which another attempt may succeed.
    pub retry_after: Option<u64>,
    /// Tokens of a prompt that is too long, and those that the context has.
    pub too_long: Option<Box<(usize, usize)>>,
}

/// What handlers return.
pub type ApiResult<T = Response> = Result<T, ApiError>;

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> ApiError {
        ApiError {
            status,
            kind,
            message: message.into(),
            param: None,
            code: None,
            retry_after: None,
            too_long: None,
        }
    }

    /// The request is wrong.
    pub fn invalid(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    /// A field of the request is wrong.
    pub fn field(name: &str, message: impl std::fmt::Display) -> ApiError {
        ApiError {
            param: Some(name.to_owned()),
            ..ApiError::invalid(format!("{name}: {message}"))
        }
    }

    /// There is no such thing.
    pub fn not_found(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::NOT_FOUND, "not_found_error", message)
    }

    /// The key is not one of those that were agreed on.
    pub fn unauthorized() -> ApiError {
        ApiError {
            code: Some("invalid_api_key"),
            ..ApiError::new(
                StatusCode::UNAUTHORIZED,
                "authentication_error",
                "the API key is missing or wrong: expected `Authorization: Bearer KEY` or `X-Api-Key: KEY`",
            )
        }
    }

    /// The body is larger than what is read.
    pub fn too_large(max: usize) -> ApiError {
        let message = format!("the body has more than {max} bytes");
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "invalid_request_error", message)
    }

    /// The body is compressed.
    pub fn encoded() -> ApiError {
        let message = "the body has a content-encoding: bodies are taken as they are, not compressed";
        ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "invalid_request_error", message)
    }

    /// The body did not come in time.
    pub fn too_slow() -> ApiError {
        let message = "the body did not come in time";
        ApiError::new(StatusCode::REQUEST_TIMEOUT, "invalid_request_error", message)
    }

    /// This server cannot do it, with this model or at all.
    pub fn unsupported(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::NOT_IMPLEMENTED, "not_supported_error", message)
    }

    /// It is understood, and cannot be done with what is there.
    pub fn unprocessable(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid_request_error", message)
    }

    /// Something failed that is not the client's fault.
    pub fn server(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message)
    }

    /// Not now.
    pub fn unavailable(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable_error", message)
    }

    /// The error object of OpenAI's interface, with llama-server's numbers of tokens.
    pub fn to_json(&self) -> Json {
        let mut error = json!({
            "message": self.message,
            "type": self.kind,
            "param": self.param,
            "code": self.code,
        });
        if let Some((n_prompt, n_ctx)) = self.too_long.as_deref() {
            error["n_prompt_tokens"] = (*n_prompt).into();
            error["n_ctx"] = (*n_ctx).into();
        }
        json!({ "error": error })
    }

    /// A response with this body.
    pub fn response(&self, body: &Json) -> Response {
        let content = [(header::CONTENT_TYPE, "application/json")];
        let mut response = (self.status, content, body.to_string()).into_response();
        if let Some(seconds) = self.retry_after {
            response
                .headers_mut()
                .insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

/// OpenAI's form; the error itself goes along, for interfaces that have another.
impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = self.response(&self.to_json());
        response.extensions_mut().insert(self);
        response
    }
}

impl From<CommandError> for ApiError {
    fn from(error: CommandError) -> ApiError {
        let message = error.to_string();
        match error {
            CommandError::NoSlot { .. } | CommandError::NoAdapter { .. } => ApiError::not_found(message),
            CommandError::Busy { .. } => ApiError {
                status: StatusCode::CONFLICT,
                ..ApiError::invalid(message)
            },
            CommandError::Empty { .. } => ApiError::invalid(message),
            CommandError::State(_) => ApiError::unprocessable(message),
            CommandError::Over => ApiError::unavailable(message),
        }
    }
}

impl From<SubmitError> for ApiError {
    fn from(error: SubmitError) -> ApiError {
        let message = error.to_string();
        match error {
            SubmitError::TooLong { n_prompt, n_ctx } => ApiError {
                too_long: Some(Box::new((n_prompt, n_ctx))),
                code: Some("context_length_exceeded"),
                param: Some("messages".to_owned()),
                ..ApiError::invalid(message)
            },
            SubmitError::Choices { .. } => ApiError::field("n", message),
            SubmitError::EmptyPrompt | SubmitError::Token { .. } | SubmitError::Sampler(_) => {
                ApiError::invalid(message)
            }
            SubmitError::Busy { retry_after, .. } => ApiError {
                code: Some("rate_limit_exceeded"),
                retry_after: Some(retry_after.as_secs().max(1)),
                ..ApiError::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", message)
            },
            SubmitError::Encoder { .. } => ApiError::unsupported(message),
            SubmitError::Closed => ApiError::unavailable(message),
        }
    }
}
