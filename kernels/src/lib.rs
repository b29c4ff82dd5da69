//! CPU kernels over plain slices, in the order data flows through them:
//! [`types`] (what the bytes of a tensor mean), `quants` (blocks to floats and back).
//!
//! Nothing here knows a graph, a model or a thread pool: a kernel takes slices and numbers. Each kernel has a
//! plain scalar form, which is its definition, and faster forms chosen once at run time.

pub mod types;

pub use types::GgmlType;
