//! Errors of the content of messages and of the media in it.

use crate::api::ApiError;

/// Error of the content of a message.
#[derive(Clone, Debug, PartialEq)]
pub enum ContentError {
    /// The content is invalid (400).
    Invalid(String),
    /// The server cannot accept more media at the moment (503).
    Busy(String),
}

impl ContentError {
    /// Puts text before the message.
    pub fn prefixed(self, prefix: &str) -> ContentError {
        let longer = |message: String| format!("{prefix}: {message}");
        match self {
            ContentError::Invalid(message) => ContentError::Invalid(longer(message)),
            ContentError::Busy(message) => ContentError::Busy(longer(message)),
        }
    }

    /// Converts to the error of a request field.
    pub fn of_field(self, field: &str) -> ApiError {
        match self {
            ContentError::Invalid(message) => ApiError::field(field, message),
            ContentError::Busy(message) => ApiError {
                param: Some(field.to_owned()),
                retry_after: Some(1),
                ..ApiError::unavailable(format!("{field}: {message}"))
            },
        }
    }
}

impl From<String> for ContentError {
    fn from(message: String) -> ContentError {
        ContentError::Invalid(message)
    }
}

impl From<&str> for ContentError {
    fn from(message: &str) -> ContentError {
        ContentError::Invalid(message.to_owned())
    }
}
