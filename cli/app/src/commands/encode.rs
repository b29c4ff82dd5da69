//! `llama encode`: writes the rows of an image or of audio, which a language model reads in place of token embeddings.

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use engine::context::ContextParams;
use engine::finite::check_finite;
use engine::gguf::logits::Logits;
use engine::model::{LoadParams, Medium, Model};
use llama::parts::{ENCODERS, encode_medium};
use media::Format;

use crate::args::values::threads;
use crate::args::{LoadArgs, PrecisionArgs};
use crate::commands::logits::write;
use crate::commands::stdout;
use crate::failure::{Failure, Outcome};
use crate::{format, input};

/// Arguments of `llama encode`.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
pub struct EncodeArgs {
    /// PNG, JPEG, WebP, GIF, BMP, WAV, MP3, FLAC, or OGG Vorbis file
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Multimodal projector file
    #[arg(long, value_name = "FILE")]
    pub mmproj: PathBuf,
    /// Output file: u32 n_rows, u32 width, i32 row numbers, f32 values (little-endian)
    #[arg(short, long, value_name = "OUT")]
    pub output: PathBuf,
    #[command(flatten)]
    pub load: LoadArgs,
    #[command(flatten)]
    pub precision: PrecisionArgs,
    /// Number of threads [default: one per core]
    #[arg(short, long, value_name = "N", value_parser = threads)]
    pub threads: Option<usize>,
}

/// Encodes the file and writes its rows.
pub fn run(args: &EncodeArgs) -> Outcome {
    let defaults = ContextParams::default();
    let n_threads = args.threads.unwrap_or(defaults.n_threads);
    let params = ContextParams {
        n_threads,
        n_threads_batch: n_threads,
        precision: args.precision.mode.into(),
        ..defaults
    };
    let bytes = input::bytes(&args.file)?;
    let is_image = Format::detect(&bytes).is_none_or(Format::is_image);
    let load = LoadParams {
        medium: Some(if is_image { Medium::Image } else { Medium::Audio }),
        ..args.load.params(args.precision.mode, None)?
    };
    let model = Arc::new(Model::load(&args.mmproj, ENCODERS, &load)?);
    let failed = |e: &dyn std::fmt::Display| Failure::new(format_args!("{}: {e}", args.file.display()));
    let rows = encode_medium(model, &params, &bytes).map_err(|e| failed(&e))?;
    check_finite(rows.rows())?;
    let numbers = (0..rows.len()).map(|row| row as i32).collect();
    let logits = Logits::new(numbers, rows.width(), rows.rows().to_vec())?;
    write(&logits, &args.output)?;
    let (n, width) = (format::plural(rows.len(), "row"), format::plural(rows.width(), "value"));
    let mut out = stdout();
    writeln!(out, "{}: {n} of {width}", args.output.display())?;
    Ok(out.flush()?)
}
