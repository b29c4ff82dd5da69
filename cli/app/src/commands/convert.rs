//! `llama convert`: writes a model file from a published checkpoint.

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use engine::checkpoint::{self, CheckpointError, Conversion, ConvertedTensor, OutputType};
use serde_json::json;

use crate::commands::stdout;
use crate::failure::{Failure, Outcome};
use crate::output::{OutputFile, check_absent, failed};
use crate::{checkpoints, declared, format, interrupt, progress};

/// Examples at the end of the help.
const NOTES: &str = "\
Examples:
  llama convert ./Qwen3-0.6B qwen3-0.6b.gguf
  llama convert ./Qwen3-0.6B qwen3-0.6b-f16.gguf --type f16";

/// Arguments of `llama convert`.
#[derive(Debug, Args)]
#[command(args_override_self = true, after_help = NOTES)]
pub struct ConvertArgs {
    /// Directory of a checkpoint, or a safetensors file next to its config.json
    #[arg(value_name = "IN")]
    pub input: PathBuf,
    /// GGUF file to write
    #[arg(value_name = "OUT")]
    pub output: PathBuf,
    /// Type of the matrices; vectors are always f32
    #[arg(long = "type", value_name = "TYPE", value_enum, default_value_t = MatrixType::Auto)]
    pub ty: MatrixType,
    /// Declaration file (FILE.rs) whose `checkpoint` section maps the tensors [default: by the checkpoint's class]
    #[arg(long, value_name = "FILE.rs")]
    pub arch: Option<PathBuf>,
    /// Print the type and size of each tensor, and write nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Replace an existing file
    #[arg(long)]
    pub force: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Values of `--type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MatrixType {
    /// The type of the checkpoint
    Auto,
    /// 32 bits
    F32,
    /// 16 bits, with a narrow range
    F16,
    /// 16 bits, with the range of f32
    Bf16,
}

impl From<MatrixType> for OutputType {
    fn from(ty: MatrixType) -> OutputType {
        match ty {
            MatrixType::Auto => OutputType::Auto,
            MatrixType::F32 => OutputType::F32,
            MatrixType::F16 => OutputType::F16,
            MatrixType::Bf16 => OutputType::Bf16,
        }
    }
}

/// Writes the file and prints its properties.
pub fn run(args: &ConvertArgs) -> Outcome {
    if !args.dry_run {
        check_absent(&args.output, args.force)?;
    }
    let declared = match &args.arch {
        Some(file) => Some(*declared::load(file)?),
        None => checkpoints::declaration_of(&args.input)?,
    };
    let archs = declared.as_ref().map_or(archs::ALL, std::slice::from_ref);
    let conversion = Conversion::open(&args.input, archs, args.ty.into()).map_err(failure)?;
    if !args.dry_run {
        write(&args.output, &conversion)?;
    }
    print(args, &conversion)
}

/// Converts an error, also for other commands.
pub fn failure(error: CheckpointError) -> Failure {
    match error {
        CheckpointError::Stopped => Failure::Interrupted,
        CheckpointError::Gguf(error) => error.into(),
        error => Failure::new(error),
    }
}

/// Writes the model file of a checkpoint.
pub fn write(path: &Path, conversion: &Conversion) -> Outcome {
    let mut output = OutputFile::create(path)?;
    let guard = interrupt::listen();
    let total: usize = conversion.tensors.iter().map(ConvertedTensor::bytes).sum();
    let bar = progress::bar("converting", total);
    let mut out = BufWriter::with_capacity(1 << 20, output.file());
    let written = checkpoint::write(conversion, &mut out, &|done| {
        bar.set(done);
        !guard.is_set()
    });
    written.map_err(failure)?;
    out.flush().map_err(|e| failed(path, &e))?;
    drop(out);
    output.finish(None)
}

fn print(args: &ConvertArgs, conversion: &Conversion) -> Outcome {
    let mut out = stdout();
    let bytes: usize = conversion.tensors.iter().map(ConvertedTensor::bytes).sum();
    if args.json {
        let tensor = |t: &ConvertedTensor| {
            json!({
                "name": t.name,
                "from": t.from,
                "shape": t.shape,
                "type": t.ty.name(),
                "bytes": t.bytes(),
            })
        };
        let report = json!({
            "file": args.output.display().to_string(),
            "class": conversion.class,
            "architecture": conversion.arch.name,
            "tensor_bytes": bytes,
            "tensors": conversion.tensors.iter().map(tensor).collect::<Vec<_>>(),
        });
        serde_json::to_writer_pretty(&mut out, &report)?;
        writeln!(out)?;
        return Ok(out.flush()?);
    }
    if args.dry_run {
        for t in &conversion.tensors {
            let (shape, ty, size) = (format::shape(&t.shape), t.ty.to_string(), format::bytes(t.bytes()));
            let from = match &t.from[..] {
                [] => "from the configuration".to_owned(),
                [one] => one.clone(),
                [first, ..] => format!("{first} and {} more", t.from.len() - 1),
            };
            writeln!(out, "{:<32} {shape:<18} {ty:<6} {size:>10}  {from}", t.name)?;
        }
    }
    writeln!(
        out,
        "{}: {} as {}, {}, {}",
        args.output.display(),
        conversion.class,
        conversion.arch.name,
        format::plural(conversion.tensors.len(), "tensor"),
        format::bytes(bytes)
    )?;
    Ok(out.flush()?)
}
