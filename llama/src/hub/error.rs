//! Errors of model names and downloads.

use std::fmt;

/// Result of an operation of the hub.
pub type HubResult<T = ()> = Result<T, HubError>;

/// Error of a model name, a download, or the cache.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HubError {
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
}
