//! Reasons why an importance matrix cannot be collected, read, or used.

use std::io;

use crate::gguf::GgufError;

/// Reason why an importance matrix cannot be collected, read, or used.
#[derive(Debug, thiserror::Error)]
pub enum ImportanceError {
    /// Reading or writing failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The GGUF file is damaged.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// The file is damaged, or of another kind.
    #[error("not a valid importance matrix: {0}")]
    Invalid(String),
    /// The sizes of a matrix differ from the sizes of the measured matrix.
    #[error(
        "tensor {tensor} has {expected} columns in all matrices, but {found} in the importance matrix, which belongs to another model"
    )]
    OtherModel {
        /// Name of the tensor.
        tensor: String,
        /// Columns of the model.
        expected: usize,
        /// Columns of the importance matrix.
        found: usize,
    },
    /// An activation is NaN or infinite.
    #[error("the input of tensor {tensor} has a value that is NaN or infinite")]
    NotFinite {
        /// Name of the tensor.
        tensor: String,
    },
}
