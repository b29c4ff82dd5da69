//! All tests that need no process of their own, in one binary: linking the engine once is much faster than once a file.
//!
//! A new file is a line here. What needs a process of its own is a `[[test]]` in `Cargo.toml`.

mod chat_templates;
mod counting;
mod cuda;
mod gguf_memory;
mod layer;
mod layouts;
mod once;
mod profile;
mod scheduler_devices;
mod soundness;
mod threads;
mod vocab_conformance;

#[expect(dead_code, reason = "the engine's tests need the compiler of kernels")]
#[path = "../../tests/src/emulator.rs"]
mod emulator;
#[path = "ops/main.rs"]
mod ops;
