//! Quantization of model files. A [`Mixture`] or [`Recipe`] determines the types for all tensors of a file, and a
//! writer decodes and encodes one tensor at a time.
//!
//! [`Recipe::choose`] searches for the lowest expected divergence within a budget of bytes. [`measure_errors`] and
//! [`measure_sensitivities`] measure the divergence that each matrix causes in each type. [`CalibratedRounding`]
//! compensates the rounding errors of each column in the following columns.

mod calibrated;
mod calibration;
mod costs;
mod error;
mod facts;
mod grid_mixture;
mod knapsack;
mod mixture;
mod moments;
mod plan;
mod prune;
mod recipe;
mod role;
mod role_mixture;
mod sensitivity;
mod write;

pub use calibrated::CalibratedRounding;
pub use calibration::Calibration;
pub use costs::{MatrixCosts, TypeCost, candidate_types, measure_errors};
pub use error::QuantizeError;
pub use mixture::Mixture;
pub use plan::{Options, PlannedTensor, QuantizePlan};
pub use prune::PrunedLayers;
pub use recipe::{Recipe, RecipeOrigin};
pub use sensitivity::measure_sensitivities;
pub use write::QuantizedFile;

#[cfg(test)]
mod tests;
