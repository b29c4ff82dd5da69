//! Importance matrices: how strongly each column of a weight matrix is used, measured on a text.
//!
//! - [`ImportanceMatrix`]: sums over activations for each matrix, and files of them
//! - [`Collector`]: observes the inputs of matmuls while a context decodes

mod collect;
mod entry;
mod error;
mod file;
mod inputs;
mod legacy;

pub use collect::Collector;
pub use entry::{Entry, ImportanceMatrix, Weights};
pub use error::ImportanceError;
pub(crate) use inputs::{InputObserver, InputSink, MatmulInputs, Use};

#[cfg(test)]
mod tests;
