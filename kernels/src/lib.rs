//! CPU kernels over plain slices, in the order data flows through them:
//! [`types`] (names, ids and sizes of the tensor types), [`quants`] (blocks to floats and back),
//! [`interleaved`] (rows of weights in groups), [`matmul()`] (the matrix product), [`attention`] (queries, keys and values), [`recurrent`] (steps of states), [`rope`] (rotary positions), [`rows`] (everything else that is done with a row of floats).
//!
//! Nothing here knows a graph, a model or a thread pool: a kernel takes slices and numbers.
//!
//! Below the public functions: `generic` holds the algorithms, written once over the trait of `simd`; `simd` has one thin file for
//! each instruction set; `dispatch` instantiates the former for the latter and chooses once at run time ([`isa`]).
//! The scalar decoders in `quants` are the definition that every other form is tested against.

mod activations;
pub mod attention;
mod dispatch;
mod generic;
pub mod interleaved;
mod matmul;
mod prefetch;
pub mod quants;
pub mod recurrent;
pub mod rope;
pub mod rows;
mod simd;
pub mod types;

pub use activations::{
    ActivationForm, Activations, BF16_STEP, FAST_COLUMNS, Precision, activation_bytes, activation_form,
    quantize_activations, round_to_bf16,
};
pub use dispatch::{Isa, isa};
pub use matmul::{MatMul, WeightLayout, matmul, matmul_scratch, multiply_tiles_in_cache};
pub use prefetch::{CACHE_LINE, CacheLevel, prefetch};
pub use quants::{can_dequantize, can_quantize, dequantize_row, quantize_row};
pub use types::GgmlType;

pub use generic::pack::PANEL_ROWS;
pub use generic::tiles::{LEAST_TILE_ROWS, MOST_TILE_ROWS};

#[cfg(test)]
mod tests;
