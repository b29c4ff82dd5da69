//! What can be wrong with a model file beyond its container format.

use std::path::PathBuf;

use kernels::GgmlType;

use crate::backend::BackendError;
use crate::builder::BuildError;
use crate::gguf::GgufError;
use crate::vocab::VocabError;

use super::nearest::did_you_mean;
use super::{HparamError, PlacementError, TensorError};

/// A model that cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The container is damaged or is none.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// `general.architecture` names an architecture that is not declared.
    #[error(
        "{}: architecture `{found}` is not supported{}; `llama arch list` prints those that are, `--arch NAME` loads the file as another",
        .path.display(), did_you_mean(.nearest)
    )]
    UnknownArchitecture {
        /// The file.
        path: PathBuf,
        /// Its architecture.
        found: String,
        /// Supported names that look alike.
        nearest: Vec<String>,
    },
    /// Hyper-parameters that are missing, mistyped or exclude each other.
    #[error("{}: {}", .path.display(), join(.errors))]
    Hparams {
        /// The file.
        path: PathBuf,
        /// All of them.
        errors: Vec<HparamError>,
    },
    /// Tensors that are missing, misshapen or left over.
    #[error("{}: does not match architecture `{arch}`: {}", .path.display(), join(.errors))]
    Tensors {
        /// The file.
        path: PathBuf,
        /// The architecture.
        arch: &'static str,
        /// All of them.
        errors: Vec<TensorError>,
    },
    /// A tensor's type cannot be computed with.
    #[error("{}: tensor `{tensor}` has type {ty}, which this engine cannot compute with yet", .path.display())]
    UnsupportedType {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Its type.
        ty: GgmlType,
    },
    /// The vocabulary.
    #[error("{}: {source}", .path.display())]
    Vocab {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: VocabError,
    },
    /// The graph cannot be built for these hyper-parameters.
    #[error("{}: {source}", .path.display())]
    Graph {
        /// The file.
        path: PathBuf,
        /// What does not fit.
        source: BuildError,
    },
    /// The weights cannot be placed as asked.
    #[error("{}: {source}", .path.display())]
    Placement {
        /// The file.
        path: PathBuf,
        /// What is not possible.
        source: PlacementError,
    },
    /// A weight is no finite number.
    #[error("{}: tensor `{tensor}` holds {value} at element {index}, expected finite numbers", .path.display())]
    BadValue {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// The element.
        index: usize,
        /// Its value.
        value: f32,
    },
    /// Memory for the weights.
    #[error("{}: loading weights: {source}", .path.display())]
    Backend {
        /// The file.
        path: PathBuf,
        /// What failed.
        source: BackendError,
    },
    /// The progress callback asked to stop.
    #[error("{}: loading was cancelled", .path.display())]
    Cancelled {
        /// The file.
        path: PathBuf,
    },
}

/// At most this many faults are listed in a message; the error holds all.
const MAX_LISTED: usize = 8;

fn join<T: std::fmt::Display>(errors: &[T]) -> String {
    let mut text = errors
        .iter()
        .take(MAX_LISTED)
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join("; ");
    if errors.len() > MAX_LISTED {
        text += &format!("; and {} more", errors.len() - MAX_LISTED);
    }
    text
}
