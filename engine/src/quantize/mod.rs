//! Quantization of model files: the types of a [`Mixture`] for all tensors of a file, and a writer that decodes
//! and encodes one tensor at a time.

mod error;
mod facts;
mod grid_mixture;
mod mixture;
mod plan;
mod role;
mod write;

pub use error::QuantizeError;
pub use mixture::Mixture;
pub use plan::{Options, PlannedTensor, QuantizePlan};
pub use write::write;

#[cfg(test)]
mod tests;
