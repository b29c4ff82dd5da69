//! Loads GGUF models and runs them. Modules stand in the order the data flows:
//!
//! - [`gguf`]: files of metadata and tensors, read and written
//! - [`vocab`]: text to tokens and back
//! - [`model`]: what an architecture declares, hyper-parameters, the tensor table, loading
//! - [`adapter`]: low-rank adapters and control vectors for a loaded model
//! - [`graph`]: tensors and operations as descriptions, shape rules
//! - [`builder`]: the graph builder that architecture files call
//! - [`alloc`]: where the intermediate results of a graph lie
//! - [`sched`]: which backend computes which node
//! - [`backend`]: devices, buffers, kernels
//! - [`context`]: batches, KV memory, decode
//! - [`grammar`]: what tokens may come next in a text that keeps to a grammar
//! - [`sample`]: logits to tokens
//! - [`speculate`]: tokens guessed, and verified many at once
//! - [`chat`]: messages to prompts
//! - [`random`]: numbers for seeded weights and tests
//! - [`conformance`]: checks of architectures against recorded logits
//! - [`synth`]: files of random weights in known shapes

#![warn(missing_docs)]

pub mod adapter;
pub mod alloc;
pub mod arch;
pub mod backend;
pub mod builder;
pub mod chat;
pub mod conformance;
pub mod context;
mod digest;
pub mod gguf;
pub mod grammar;
pub mod graph;
pub mod model;
pub mod random;
pub mod sample;
pub mod sched;
pub mod speculate;
pub mod synth;
pub mod vocab;
