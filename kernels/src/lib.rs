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
//!
//! A kernel takes slices and numbers; the crate has no notion of a graph, a model, or a thread pool.
//!
//! Internally, `generic` holds the algorithms, written once over the traits of `simd`. `simd` has one thin
//! file per instruction set. `dispatch` instantiates the algorithms for each instruction set and selects one
//! at run time ([`isa`]). The scalar decoders in `quants` are the reference that all other implementations
//! are tested against.

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
pub use generic::tiles::{MAX_TILE_ROWS, MIN_TILE_ROWS};

#[cfg(test)]
mod tests;
