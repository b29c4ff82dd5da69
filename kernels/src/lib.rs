//! CPU kernels over plain slices, in the order data flows through them:
//! [`types`] (what the bytes of a tensor are called and how large they are), [`quants`] (blocks to floats and back).
//!
//! Nothing here knows a graph, a model or a thread pool: a kernel takes slices and numbers. Each kernel has a
//! plain scalar form, which is its definition, and faster forms chosen once at run time.

pub mod quants;
pub mod types;

pub use quants::{can_dequantize, can_quantize, dequantize_row, quantize_row};
pub use types::GgmlType;
