//! API errors and their mapping to HTTP status codes and error objects.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value as Json, json};

use crate::scheduler::{CommandError, SubmitError};

/// Error returned to the client.
#[derive(Clone, Debug, PartialEq)]
pub struct ApiError {
    /// HTTP status code.
    pub status: StatusCode,
    /// OpenAI's `type` of the error.
    pub kind: &'static str,
    /// Error message for the user.
    pub message: String,
    /// Request field that caused the error.
    pub param: Option<String>,
    /// OpenAI's `code` of the error.
    pub code: Option<&'static str>,
    /// Value of `Retry-After` in seconds.
    pub retry_after: Option<u64>,
    /// Prompt tokens and context size, if the prompt is too long.
    pub too_long: Option<Box<(usize, usize)>>,
}

/// Result of a request handler.
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

    /// Returns a 400 error.
    pub fn invalid(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    /// Returns a 400 error about one request field.
    pub fn field(name: &str, message: impl std::fmt::Display) -> ApiError {
        ApiError {
            param: Some(name.to_owned()),
            ..ApiError::invalid(format!("{name}: {message}"))
        }
    }

    /// Names the field `prompt` in place of `messages`, or if the error names no field.
    pub fn of_prompt(mut self) -> ApiError {
        if self.param.as_deref().is_none_or(|param| param == "messages") {
            self.param = Some("prompt".to_owned());
        }
        self
    }

    /// Returns a 404 error.
    pub fn not_found(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::NOT_FOUND, "not_found_error", message)
    }

    /// Returns the 401 error for a missing or wrong API key.
    pub fn unauthorized() -> ApiError {
        ApiError {
            code: Some("invalid_api_key"),
            ..ApiError::new(
                StatusCode::UNAUTHORIZED,
                "authentication_error",
                "invalid or missing API key: expected `Authorization: Bearer KEY` or `X-Api-Key: KEY`",
            )
        }
    }

    /// Returns the 413 error for a request body above the size limit.
    pub fn too_large(max: usize) -> ApiError {
        let message = format!("the request body exceeds the limit of {max} bytes");
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "invalid_request_error", message)
    }

    /// Returns the 413 error for a request body whose values need too much memory.
    pub fn too_complex(max: usize) -> ApiError {
        let max = max >> 20;
        let message = format!("the values in the request body need more than {max} MiB of memory; send fewer values");
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "invalid_request_error", message)
    }

    /// Returns the 503 error for a request body that does not fit into memory in addition to those of other requests.
    pub fn bodies_in_flight() -> ApiError {
        ApiError {
            retry_after: Some(1),
            ..ApiError::unavailable("too many large request bodies are in flight; try again in a moment")
        }
    }

    /// Returns the 415 error for a compressed request body.
    pub fn encoded() -> ApiError {
        let message = "unsupported content-encoding: send the request body uncompressed";
        ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "invalid_request_error", message)
    }

    /// Returns the 408 error for a request body that arrives too slowly.
    pub fn too_slow() -> ApiError {
        let message = "timed out while reading the request body";
        ApiError::new(StatusCode::REQUEST_TIMEOUT, "invalid_request_error", message)
    }

    /// Returns a 501 error: the server or the model lacks the feature.
    pub fn unsupported(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::NOT_IMPLEMENTED, "not_supported_error", message)
    }

    /// Returns a 422 error: the request is valid but cannot be processed.
    pub fn unprocessable(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid_request_error", message)
    }

    /// Returns a 500 error.
    pub fn server(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message)
    }

    /// Returns a 503 error.
    pub fn unavailable(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable_error", message)
    }

    /// Returns the error object in OpenAI's format, with llama-server's token counts.
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

    /// Returns an HTTP response with this status and the given body.
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

/// Converts to OpenAI's format. The error is also attached as an extension, so that other APIs can reformat
/// it.
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
            CommandError::Foreign { .. } => ApiError {
                status: StatusCode::FORBIDDEN,
                ..ApiError::invalid(message)
            },
            CommandError::Empty { .. } => ApiError::invalid(message),
            CommandError::State(_) | CommandError::Adapters(_) => ApiError::unprocessable(message),
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
                kind: "exceed_context_size_error",
                ..ApiError::invalid(message)
            },
            SubmitError::Choices { .. } => ApiError::field("n", message),
            SubmitError::Adapter { .. } => ApiError::field("lora", message),
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
