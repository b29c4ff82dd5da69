//! Reasons why a file cannot be quantized.

use kernels::GgmlType;

use crate::context::ContextError;
use crate::gguf::GgufError;
use crate::importance::ImportanceError;
use crate::measure::MeasureError;
use crate::model::ModelError;

/// Reason why a file cannot be quantized.
#[derive(Debug, thiserror::Error)]
pub enum QuantizeError {
    /// Reading or writing failed.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// A tensor is already quantized; quantizing it again would add up errors.
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
    /// Rows fit none of the types.
    #[error("tensor {tensor} has rows of {n_in} elements, which are not whole blocks of any of the types")]
    NoType {
        /// Name of the tensor.
        tensor: String,
        /// Length of a row.
        n_in: usize,
    },
    /// The budget is less than the size in the smallest types.
    #[error("the smallest types need {smallest} bytes ({bits:.2} bits per weight), but the target is {target}")]
    SmallBudget {
        /// Size of all tensors in the smallest types.
        smallest: usize,
        /// Bits per weight in the smallest types.
        bits: f64,
        /// Size that was requested for all tensors.
        target: usize,
    },
    /// A layer to prune does not exist.
    #[error("there is no layer {layer} to prune; the model has {n_layers} layers, numbered from 0")]
    NoLayer {
        /// Number of the layer.
        layer: usize,
        /// Number of layers of the model.
        n_layers: usize,
    },
    /// Pruning would remove all layers.
    #[error("all layers would be pruned")]
    AllPruned,
    /// A tensor or type of a recipe does not fit the model.
    #[error("the recipe has {tensor} as {ty}, which does not fit the model; the recipe belongs to another model")]
    ForeignRecipe {
        /// Name of the tensor.
        tensor: String,
        /// Type in the recipe.
        ty: GgmlType,
    },
    /// A recipe is damaged.
    #[error("not a valid recipe: {0}")]
    InvalidRecipe(String),
    /// The model cannot be loaded.
    #[error(transparent)]
    Model(#[from] Box<ModelError>),
    /// The model cannot be run.
    #[error(transparent)]
    Context(#[from] ContextError),
    /// The divergence cannot be measured.
    #[error(transparent)]
    Measure(#[from] MeasureError),
    /// The caller stopped the operation.
    #[error("stopped")]
    Stopped,
}
