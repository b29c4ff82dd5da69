//! Adapters: small files that change what a loaded model computes, without changing its weights.
//!
//! - [`LoraAdapter`]: low-rank terms beside matrices and tables
//! - [`ControlVector`]: a direction added to the result of each layer
//!
//! Both are checked against the model when they are loaded, and belong to it. A context is told which of them apply by
//! [`Context::set_adapters`](crate::context::Context::set_adapters) and
//! [`Context::set_control_vectors`](crate::context::Context::set_control_vectors), at any time.

mod control;
mod error;
mod lora;
mod place;

pub use control::ControlVector;
pub use error::{AdapterError, AdapterFlaw};
pub use lora::LoraAdapter;
pub(crate) use place::{PlacedLeaf, ToPlace, place};
