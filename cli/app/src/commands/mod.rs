//! Subcommands, one module each.

pub mod arch;
pub mod batch;
pub mod bench;
pub mod convert;
pub mod cvector;
pub mod devices;
pub mod doctor;
pub mod embed;
pub mod encode;
pub mod generate;
pub mod gguf;
pub mod imatrix;
pub mod inspect;
pub mod logits;
pub mod lora;
pub mod models;
pub mod perplexity;
mod plan;
mod projector;
pub mod quantize;
pub mod reference;
pub mod run;
pub mod serve;
pub mod synth;
pub mod tokenize;
pub mod transcribe;

use std::io::BufWriter;

use crate::printable::PrintableWriter;
use crate::terminal::{self, CheckedStdout};

/// Returns buffered standard output, which escapes control characters. Callers must flush it to detect write
/// errors.
fn stdout() -> BufWriter<PrintableWriter<CheckedStdout>> {
    BufWriter::with_capacity(1 << 16, PrintableWriter::new(terminal::output()))
}
