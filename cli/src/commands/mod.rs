//! One module for each command.

mod answer;
pub mod arch;
pub mod batch;
pub mod bench;
mod chat;
pub mod devices;
pub mod doctor;
pub mod embed;
mod fleet;
pub mod generate;
pub mod input;
pub mod inspect;
pub mod listen;
pub mod logits;
pub mod models;
mod plan;
pub mod reference;
pub mod run;
pub mod serve;
pub mod synth;
pub mod tokenize;

use std::io::{self, BufWriter, StdoutLock};

/// Standard output for commands that print much at once; the caller flushes it and so learns of errors.
fn stdout() -> BufWriter<StdoutLock<'static>> {
    BufWriter::with_capacity(1 << 16, io::stdout().lock())
}
