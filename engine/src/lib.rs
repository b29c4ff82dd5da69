//! Loads GGUF models and runs them. Modules, in the order of the data flow:
//!
//! - [`gguf`]: reading and writing GGUF files
//! - [`vocab`]: tokenizing and detokenizing
//! - [`model`]: architecture declarations, hyperparameters, tensor table, loading
//! - [`adapter`]: LoRA adapters and control vectors
//! - [`graph`]: tensors, operations, and shape rules
//! - [`builder`]: graph builder used by architecture files
//! - [`declared`]: architectures declared at run time
//! - [`alloc`]: memory planning for intermediate results
//! - [`sched`]: assignment of nodes to backends
//! - [`backend`]: devices, buffers, kernels
//! - [`context`]: batches, KV cache, decoding
//! - [`grammar`]: grammar-constrained generation
//! - [`sample`]: sampler chain
//! - [`speculate`]: speculative decoding
//! - [`chat`]: chat templates
//! - [`random`]: random numbers for seeded weights and tests
//! - [`checkpoint`]: published checkpoints and their conversion
//! - [`conformance`]: checks of architectures against recorded logits
//! - [`importance`]: importance matrices for quantization
//! - [`measure`]: perplexity, divergence between models, multiple-choice tasks
//! - [`quantize`]: quantization of model files
//! - [`synth`]: synthetic models for benchmarks

#![warn(missing_docs)]

pub mod adapter;
pub mod alloc;
pub mod arch;
pub mod backend;
pub mod builder;
pub mod chat;
pub mod checkpoint;
pub mod conformance;
pub mod context;
pub mod declared;
mod digest;
pub mod finite;
pub mod gguf;
pub mod grammar;
pub mod graph;
pub mod importance;
pub mod measure;
pub mod model;
pub mod quantize;
pub mod random;
pub mod sample;
pub mod sched;
pub mod speculate;
pub mod synth;
pub mod vocab;
