//! Errors of model names and downloads.

use std::fmt;

use super::short_names::SHORT_NAMES;

/// Result of an operation of the hub.
pub type HubResult<T = ()> = Result<T, HubError>;

/// Error of a model name, a download, or the cache.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HubError {
    /// The text is neither a file nor a model name.
    #[error(
        "{name:?} is neither a file nor a model name; expected user/repo, user/repo:QUANT, or a short name such as qwen3:0.6b{}",
        similar_names(similar)
    )]
    InvalidName {
        /// The text.
        name: String,
        /// Similar short names.
        similar: Vec<String>,
    },
    /// The model is not cached, and offline mode is on.
    #[error("cannot download {name}: offline mode is on (the option `offline` or HF_HUB_OFFLINE)")]
    Offline {
        /// Name or URL of the model.
        name: String,
    },
    /// The model does not exist, or access requires a token and none is set.
    #[error("{response}: the model does not exist or requires a token; set the option `token` or HF_TOKEN")]
    TokenRequired {
        /// URL and status of the response.
        response: String,
    },
    /// The operation failed. The message names the model, URL, or file, and the reason.
    #[error("{0}")]
    Failed(String),
    /// The operation was cancelled.
    #[error("cancelled")]
    Cancelled,
}

impl HubError {
    /// Creates an error with a message.
    pub(crate) fn new(message: impl fmt::Display) -> HubError {
        HubError::Failed(message.to_string())
    }

    /// Creates the error for a text that is not a model name.
    pub fn invalid_name(text: &str) -> HubError {
        HubError::InvalidName {
            name: text.to_owned(),
            similar: engine::model::nearest_names(text, SHORT_NAMES.iter().map(|short| short.name)),
        }
    }
}

/// Formats similar names as the end of a message; an empty string without names.
fn similar_names(names: &[String]) -> String {
    if names.is_empty() {
        String::new()
    } else {
        format!("; similar names: {}", names.join(", "))
    }
}
