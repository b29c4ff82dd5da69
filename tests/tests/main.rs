//! Tests that need no separate process, in one test binary to link the engine only once.
//!
//! Every new test file needs a line here, which `tidy` checks. Tests that need a separate process are
//! `[[test]]` entries in `Cargo.toml`.

mod adapters;
mod arch_shapes;
mod audio_encoders;
mod batches;
mod calibration;
mod cancel;
mod checkpoints;
mod compressed_keys;
mod conformance;
mod cuda;
mod cuda_best;
mod cuda_captures;
mod cuda_experts;
mod cuda_few;
mod cuda_forms;
mod cuda_fusion;
mod cuda_halves;
mod cuda_kernels;
mod cuda_multi_gpu;
mod cuda_rounding;
mod cuda_router;
mod cuda_shipped;
mod cuda_stream;
mod cuda_sums;
mod cuda_times;
mod cuda_wgmma;
mod deciding_keys;
mod declared;
mod declared_errors;
mod deploy;
mod developer_documents;
mod devices;
mod documents;
mod embeddings;
mod encoder_families;
mod encoder_images;
mod encoder_sizes;
mod encoder_tiles;
mod encoders;
mod failed_decode;
mod gpu_pack;
mod invariants;
mod kv_memory;
mod latent_attention;
mod layouts;
mod many_sequences;
mod mtp;
mod next_token_layers;
mod oracle;
mod plan;
mod real_models;
mod recorded;
mod recurrent_memory;
mod repacked;
mod row_headers;
mod seeds;
mod selections;
mod speculation;
mod state;
mod synth;
mod tables;
mod templates;
mod threads;
mod tidy;
mod variations;

#[path = "hostile/main.rs"]
mod hostile;
