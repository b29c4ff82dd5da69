//! Errors of reading and converting checkpoints.

use std::io;
use std::path::{Path, PathBuf};

use crate::gguf::GgufError;
use crate::model::ModelError;

/// An error of reading or converting a checkpoint.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum CheckpointError {
    /// A file cannot be read.
    #[error("cannot read {}: {error}", .path.display())]
    Io { path: PathBuf, error: io::Error },
    /// A file of the checkpoint is damaged or contradicts another file.
    #[error("{}: {text}", .path.display())]
    File { path: PathBuf, text: String },
    /// A tensor of the checkpoint cannot be converted.
    #[error("{}: tensor `{name}` {text}", .path.display())]
    Tensor { path: PathBuf, name: String, text: String },
    /// A setting of the configuration is missing or invalid.
    #[error("{}: {text}", .path.display())]
    Config { path: PathBuf, text: String },
    /// No architecture declares the class of the configuration.
    #[error("{}: no architecture reads checkpoints of class `{class}`{hint}", .path.display())]
    UnknownClass { path: PathBuf, class: String, hint: String },
    /// The tokenizer cannot be converted.
    #[error("{}: {text}", .path.display())]
    Tokenizer { path: PathBuf, text: String },
    /// The converted model does not match its architecture.
    #[error("the settings contradict the tensors: {0}")]
    Model(#[from] ModelError),
    /// The output cannot be written.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// The caller stopped the conversion.
    #[error("the conversion was stopped")]
    Stopped,
}

impl CheckpointError {
    pub(super) fn file(path: &Path, text: impl Into<String>) -> CheckpointError {
        CheckpointError::File {
            path: path.to_owned(),
            text: text.into(),
        }
    }

    pub(super) fn config(path: &Path, text: impl Into<String>) -> CheckpointError {
        CheckpointError::Config {
            path: path.to_owned(),
            text: text.into(),
        }
    }

    pub(super) fn tensor(path: &Path, name: &str, text: impl Into<String>) -> CheckpointError {
        CheckpointError::Tensor {
            path: path.to_owned(),
            name: name.to_owned(),
            text: text.into(),
        }
    }

    pub(super) fn tokenizer(path: &Path, text: impl Into<String>) -> CheckpointError {
        CheckpointError::Tokenizer {
            path: path.to_owned(),
            text: text.into(),
        }
    }
}
