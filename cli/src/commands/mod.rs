//! Subcommands, one module each.

pub mod arch;
pub mod batch;
pub mod bench;
pub mod devices;
pub mod doctor;
pub mod embed;
pub mod generate;
pub mod inspect;
pub mod logits;
pub mod models;
mod plan;
pub mod reference;
pub mod run;
pub mod serve;
pub mod synth;
pub mod tokenize;

use std::io::{self, BufWriter, StdoutLock};

/// Returns buffered standard output. Callers must flush it to detect write errors.
fn stdout() -> BufWriter<StdoutLock<'static>> {
    BufWriter::with_capacity(1 << 16, io::stdout().lock())
}
