//! All tests that need no process of their own, in one binary: linking the engine once is much faster than once a file.
//!
//! A new file is a line here; `tidy` looks for files that have none. What needs a process of its own is a `[[test]]` in `Cargo.toml`.

mod adapters;
mod arch_shapes;
mod batches;
mod cancel;
mod compressed_keys;
mod conformance;
mod cuda;
mod cuda_cards;
mod cuda_fusion;
mod cuda_kernels;
mod cuda_rounding;
mod cuda_shipped;
mod deploy;
mod devices;
mod embeddings;
mod failed_decode;
mod invariants;
mod kv_memory;
mod latent_attention;
mod layouts;
mod many_sequences;
mod mtp;
mod next_token_layers;
mod plan;
mod real_models;
mod recorded;
mod recurrent_memory;
mod repacked;
mod seeds;
mod selections;
mod speculation;
mod state;
mod synth;
mod tables;
mod threads;
mod tidy;
mod variations;

#[path = "hostile/main.rs"]
mod hostile;
