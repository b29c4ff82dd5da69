//! Reasons why a file cannot be quantized.

use kernels::GgmlType;

use crate::gguf::GgufError;
use crate::importance::ImportanceError;

/// Reason why a file cannot be quantized.
#[derive(Debug, thiserror::Error)]
pub enum QuantizeError {
    /// Reading or writing failed.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// A tensor is quantized already, so that its errors would add up.
    #[error(
        "tensor {tensor} is already quantized ({ty}); quantize the original model, or accept the loss with --allow-requantize"
    )]
    AlreadyQuantized {
        /// Name of the tensor.
        tensor: String,
        /// Type in the source file.
        ty: GgmlType,
    },
    /// A tensor has a type that cannot be decoded.
    #[error("tensor {tensor} has type {ty}, which cannot be decoded")]
    Undecodable {
        /// Name of the tensor.
        tensor: String,
        /// Type in the source file.
        ty: GgmlType,
    },
    /// A weight is NaN or infinite.
    #[error("tensor {tensor} has the value {value} in row {row}, column {column}; the source file is damaged")]
    NotFinite {
        /// Name of the tensor.
        tensor: String,
        /// Index of the row, over all matrices of the tensor.
        row: usize,
        /// Index within the row.
        column: usize,
        /// NaN or infinity.
        value: f32,
    },
    /// The importance matrix cannot be used.
    #[error(transparent)]
    Importance(#[from] ImportanceError),
    /// The importance matrix has no tensor of the model.
    #[error("the importance matrix has none of the model's tensors; it belongs to another model")]
    ForeignImportance,
    /// The caller stopped the operation.
    #[error("stopped")]
    Stopped,
}
