//! All tests that need no separate process, in one binary: linking the engine once is much faster than
//! linking it per file.
//!
//! Add a line here for each new file. Tests that need their own process are `[[test]]` entries in
//! `Cargo.toml`.

mod chat_templates;
mod checkpoints;
mod counting;
mod cuda;
mod gguf_memory;
mod jinja;
mod layer;
mod layouts;
mod once;
mod profile;
mod scheduler_devices;
mod soundness;
mod threads;
mod vocab_conformance;

#[expect(dead_code, reason = "the engine tests use only some of these helpers")]
#[path = "../../tests/src/emulator.rs"]
mod emulator;
#[path = "ops/main.rs"]
mod ops;
#[path = "../../tests/src/root.rs"]
mod root;
