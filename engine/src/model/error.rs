//! Errors that can occur when loading a model.

use std::path::PathBuf;

use kernels::GgmlType;

use crate::backend::BackendError;
use crate::builder::BuildError;
use crate::gguf::{FileKind, GgufError};
use crate::vocab::VocabError;

use super::nearest::did_you_mean;
use super::{HparamError, PlacementError, TensorError};

/// An error that can occur when loading a model.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum ModelError {
    /// The GGUF file is invalid.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// The checkpoint cannot be converted.
    #[error("{text}")]
    Checkpoint {
        /// Complete message, which names the file of the checkpoint.
        text: String,
    },
    /// The file belongs to a model, but is not a model.
    #[error("{}: the file is {kind}, not a model; {}", .path.display(), .kind.advice())]
    NotAModel {
        path: PathBuf,
        /// Kind of the file.
        kind: FileKind,
    },
    /// The file is not a media encoder.
    #[error("{}: the file is {kind}, not a multimodal projector (mmproj)", .path.display())]
    NotAnEncoder {
        path: PathBuf,
        /// Kind of the file.
        kind: FileKind,
    },
    /// `clip.projector_type` names an unknown encoder.
    #[error("{}: unsupported projector type `{found}`; supported: {known}", .path.display())]
    UnknownEncoder {
        path: PathBuf,
        found: String,
        /// Names of all supported encoders.
        known: String,
    },
    /// `general.architecture` names an unknown architecture.
    #[error(
        "{}: unsupported architecture `{found}`{}; list supported ones with `llama arch list`, or override it with `--arch NAME`",
        .path.display(), did_you_mean(.nearest)
    )]
    UnknownArchitecture {
        path: PathBuf,
        found: String,
        /// Supported architectures with a similar name.
        nearest: Vec<String>,
    },
    /// The declaration is for another kind of file.
    #[error(
        "{}: the file is {}, but `{arch}` declares {}",
        .path.display(), kind(*.is_encoder), kind(!*.is_encoder)
    )]
    OtherKind {
        path: PathBuf,
        /// Name of the declaration.
        arch: &'static str,
        /// The file is the projector of an encoder.
        is_encoder: bool,
    },
    /// The declaration of the architecture has errors.
    #[error("{}: cannot use the declaration of architecture `{arch}`: {reason}", .path.display())]
    Declaration {
        path: PathBuf,
        /// Name of the architecture.
        arch: String,
        /// Errors of the declaration.
        reason: String,
    },
    /// Hyperparameters are missing, mistyped, or contradictory.
    #[error("{}: {}", .path.display(), join(.errors))]
    Hparams {
        path: PathBuf,
        /// All hyperparameter errors found.
        errors: Vec<HparamError>,
    },
    /// Tensors are missing, have the wrong shape, or are unexpected.
    #[error("{}: does not match architecture `{arch}`: {}", .path.display(), join(.errors))]
    Tensors {
        path: PathBuf,
        arch: &'static str,
        /// All tensor errors found.
        errors: Vec<TensorError>,
    },
    /// A tensor has a type without kernels.
    #[error("{}: tensor `{tensor}` has the unsupported type {ty}", .path.display())]
    UnsupportedType {
        path: PathBuf,
        tensor: String,
        ty: GgmlType,
    },
    /// The vocabulary is invalid.
    #[error("{}: {source}", .path.display())]
    Vocab { path: PathBuf, source: VocabError },
    /// The graph cannot be built with these hyperparameters.
    #[error("{}: {source}", .path.display())]
    Graph { path: PathBuf, source: BuildError },
    /// The weights cannot be placed as requested.
    #[error("{}: {source}", .path.display())]
    Placement { path: PathBuf, source: PlacementError },
    /// A weight is NaN or infinite.
    #[error("{}: tensor `{tensor}` has the value {value} at element {index}; expected finite numbers", .path.display())]
    BadValue {
        path: PathBuf,
        tensor: String,
        /// Index of the element in the tensor.
        index: usize,
        value: f32,
    },
    /// Allocating or uploading weights failed.
    #[error("{}: cannot load the weights: {source}", .path.display())]
    Backend { path: PathBuf, source: BackendError },
    /// The progress callback cancelled the load.
    #[error("{}: loading the model was cancelled", .path.display())]
    Cancelled { path: PathBuf },
}

/// Maximum number of errors listed in a message.
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

/// Describes the kind of a file or declaration.
fn kind(is_encoder: bool) -> &'static str {
    if is_encoder {
        "the projector of an encoder"
    } else {
        "a language model"
    }
}
