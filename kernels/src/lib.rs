//! CPU kernels for GGUF tensors.
//!
//! | module | contents |
//! |---|---|
//! | [`types`] | names, ids, and block sizes of the tensor types |
//! | [`quants`] | quantization and dequantization of blocks |
//! | [`interleaved`] | repacked weights in groups of 8 rows |
//! | [`matmul()`] | matmul of weights with activations |
//! | [`attention`] | scores, online softmax, and weighted values |
//! | [`recurrent`] | steps of recurrent state (SSM, RWKV) |
//! | [`rope`] | rotary position embeddings |
//! | [`rows`] | all other operations on rows of floats |
//! | [`peak`] | loops at the peak rates of the machine |
//!
//! A kernel takes slices and numbers; the crate has no notion of a graph, a model, or a thread pool.
//!
//! The modules form layers. A module uses only modules of earlier layers (`tests/tests/tidy/layers.rs`):
//!
//! 1. [`types`]: the tensor types
//! 2. `limits`, `lengths`, `prefetch`: shared numbers, checks of lengths, cache hints
//! 3. `simd`: register traits, with one thin file per instruction set
//! 4. `layout`: weights in memory, as blocks, runs of 32 weights, and groups of 8 rows
//! 5. [`quants`], `generic`: the formats, and the algorithms, written once over the traits of `simd` and
//!    `layout`
//! 6. `dispatch`: the algorithms instantiated for each instruction set and type, chosen at run time ([`isa`])
//! 7. `activations`, [`attention`], `convert`, [`interleaved`], [`recurrent`], [`rope`], [`rows`]: functions on
//!    slices, which check lengths and call the chosen kernel
//! 8. `encode`, `matmul`: the search for the closest weights of a type, and the choice of an algorithm for a matmul
//! 9. [`peak`]: the rates that benchmarks compare kernels with
//!
//! The scalar decoders in `quants` are the reference that all other implementations are tested against.

mod activations;
pub mod attention;
mod convert;
mod dispatch;
mod encode;
mod generic;
pub mod interleaved;
mod layout;
mod lengths;
mod limits;
mod matmul;
pub mod peak;
mod prefetch;
pub mod quants;
pub mod recurrent;
pub mod rope;
pub mod rows;
mod simd;
pub mod types;

pub use activations::{
    ActivationForm, Activations, BF16_STEP, FAST_COLUMNS, FASTEST_COLUMNS, Precision, activation_bytes,
    activation_form, quantize_activations, round_to_bf16,
};
pub use convert::{can_decode, can_dequantize, can_quantize, dequantize_row, quantize_row, rows_in_memory};
pub use dispatch::{Isa, isa};
pub use encode::{
    FACTOR_ROWS, Feedback, add_moments, can_encode, can_encode_rows, encode_row, encode_rows, factor_diagonal,
    factor_rows,
};
pub use matmul::{MatMul, WeightLayout, matmul, matmul_scratch};
pub use prefetch::{CACHE_LINE, CacheLevel, prefetch};
pub use types::GgmlType;

pub use generic::pack::PANEL_ROWS;
pub use generic::tiles::{MAX_TILE_ROWS, MIN_TILE_ROWS};

#[cfg(test)]
mod tests;
