//! `llama convert-lora` and `llama export-lora`: converts published adapters, and merges adapters into models.

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use engine::adapter::{Merge, MergeError, ScaledFactors};
use engine::checkpoint::{AdapterConversion, CheckpointError};
use engine::gguf::{GgufFile, GgufSet};
use serde_json::json;

use crate::args::{ScaledFile, file_and_scale, scaled_file};
use crate::commands::stdout;
use crate::failure::{Failure, Outcome};
use crate::output::{OutputFile, check_absent, failed};
use crate::{checkpoints, declared, format, interrupt, progress};

/// Arguments of `llama convert-lora`.
#[derive(Debug, Args)]
#[command(
    args_override_self = true,
    after_help = "Example:\n  llama convert-lora ./my-adapter adapter.gguf --base ./Qwen3-0.6B\n  llama run qwen3-0.6b.gguf --lora adapter.gguf"
)]
pub struct ConvertLoraArgs {
    /// Directory of an adapter that the PEFT library has saved
    #[arg(value_name = "IN")]
    pub input: PathBuf,
    /// GGUF file to write
    #[arg(value_name = "OUT")]
    pub output: PathBuf,
    /// Directory with the config.json of the base model
    #[arg(long, value_name = "DIR")]
    pub base: PathBuf,
    /// Declaration file (FILE.rs) whose `checkpoint` section maps the weights [default: by the base model's class]
    #[arg(long, value_name = "FILE.rs")]
    pub arch: Option<PathBuf>,
    /// Print the adapted weights, and write nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Replace an existing file
    #[arg(long)]
    pub force: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `llama export-lora`.
#[derive(Debug, Args)]
#[command(
    args_override_self = true,
    after_help = "Example:\n  llama export-lora model-f16.gguf merged-f16.gguf --lora style.gguf --lora facts.gguf=0.5"
)]
pub struct ExportLoraArgs {
    /// GGUF file of the model, or the first part of a split model
    #[arg(value_name = "IN", required_unless_present = "model", conflicts_with = "model")]
    pub input: Option<PathBuf>,
    /// GGUF file to write
    #[arg(value_name = "OUT", required_unless_present = "output", conflicts_with = "output")]
    pub out: Option<PathBuf>,
    /// GGUF file of the model; replaces IN
    #[arg(short, long, value_name = "FILE", requires = "output")]
    pub model: Option<PathBuf>,
    /// GGUF file to write; replaces OUT
    #[arg(short, long, value_name = "FILE", alias = "output-file")]
    pub output: Option<PathBuf>,
    /// LoRA adapter and its scale (may be repeated or comma-separated)
    #[arg(long, value_name = "FILE[=SCALE]", value_parser = scaled_file, value_delimiter = ',',
          required_unless_present = "lora_scaled")]
    pub lora: Vec<ScaledFile>,
    /// LoRA adapter and its scale, in llama.cpp's syntax
    #[arg(long, value_name = "FILE:SCALE", value_parser = file_and_scale, value_delimiter = ',')]
    pub lora_scaled: Vec<ScaledFile>,
    /// Replace an existing file
    #[arg(long)]
    pub force: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Converts an adapter and prints its properties.
pub fn convert(args: &ConvertLoraArgs) -> Outcome {
    if !args.dry_run {
        check_absent(&args.output, args.force)?;
    }
    let declared = match &args.arch {
        Some(file) => Some(*declared::load(file)?),
        None => checkpoints::declaration_of(&args.base)?,
    };
    let archs = declared.as_ref().map_or(archs::ALL, std::slice::from_ref);
    let adapter = AdapterConversion::open(&args.input, &args.base, archs).map_err(of_checkpoint)?;
    if !args.dry_run {
        let guard = interrupt::listen();
        let bar = progress::timed("converting", adapter.weights.len());
        write(&args.output, |out| {
            let progress = |done| {
                bar.set(done);
                !guard.is_set()
            };
            adapter.write(out, &progress).map_err(of_checkpoint)
        })?;
    }
    print_converted(args, &adapter)
}

fn print_converted(args: &ConvertLoraArgs, adapter: &AdapterConversion) -> Outcome {
    let mut out = stdout();
    if args.json {
        let weights = adapter.weights.iter();
        let weights = weights.map(|w| json!({ "name": w.name, "from": w.from, "rank": w.rank, "shapes": w.shapes }));
        let report = json!({
            "file": args.output.display().to_string(),
            "architecture": adapter.arch.name,
            "alpha": adapter.alpha,
            "weights": weights.collect::<Vec<_>>(),
        });
        serde_json::to_writer_pretty(&mut out, &report)?;
        writeln!(out)?;
        return Ok(out.flush()?);
    }
    if args.dry_run {
        for weight in &adapter.weights {
            let from = weight.from.first().map_or("", String::as_str);
            writeln!(out, "{:<32} rank {:<5} {from}", weight.name, weight.rank)?;
        }
    }
    writeln!(
        out,
        "{}: LoRA adapter for {}, {}",
        args.output.display(),
        adapter.arch.name,
        format::plural(adapter.weights.len(), "weight")
    )?;
    Ok(out.flush()?)
}

/// Merges adapters into a model.
pub fn export(args: &ExportLoraArgs) -> Outcome {
    let (Some(input), Some(output)) = (
        args.input.as_ref().or(args.model.as_ref()),
        args.out.as_ref().or(args.output.as_ref()),
    ) else {
        return Err(Failure::new("expected a model and an output file"));
    };
    check_absent(output, args.force)?;
    checkpoints::refuse(input)?;
    let model = GgufSet::open(input)?;
    let scaled = || args.lora.iter().chain(&args.lora_scaled);
    let files = scaled().map(|adapter| GgufFile::open(&adapter.path));
    let files = files.collect::<Result<Vec<_>, _>>()?;
    let adapters: Vec<_> = files
        .iter()
        .zip(scaled())
        .map(|(file, adapter)| ScaledFactors {
            file,
            scale: adapter.scale,
        })
        .collect();
    let merge = Merge::new(&model, &adapters).map_err(of_merge)?;
    let guard = interrupt::listen();
    let bar = progress::timed("merging", merge.n_elements());
    write(output, |out| {
        let progress = |done| {
            bar.set(done);
            !guard.is_set()
        };
        merge.write(out, &progress).map(|_| ()).map_err(of_merge)
    })?;
    drop(bar);
    let mut out = stdout();
    if args.json {
        let report = json!({ "file": output.display().to_string(), "weights": merge.n_weights() });
        serde_json::to_writer_pretty(&mut out, &report)?;
        writeln!(out)?;
    } else {
        let weights = format::plural(merge.n_weights(), "weight");
        writeln!(out, "{}: {weights} changed", output.display())?;
    }
    Ok(out.flush()?)
}

/// Writes a file under a temporary name, and renames it once it is complete.
fn write(path: &Path, f: impl FnOnce(&mut dyn Write) -> Outcome) -> Outcome {
    let mut output = OutputFile::create(path)?;
    let mut out = BufWriter::with_capacity(1 << 20, output.file());
    f(&mut out)?;
    out.flush().map_err(|e| failed(path, &e))?;
    drop(out);
    output.finish(None)
}

fn of_checkpoint(error: CheckpointError) -> Failure {
    match error {
        CheckpointError::Stopped => Failure::Interrupted,
        CheckpointError::Gguf(error) => error.into(),
        error => Failure::new(error),
    }
}

fn of_merge(error: MergeError) -> Failure {
    match error {
        MergeError::Stopped => Failure::Interrupted,
        error => error.into(),
    }
}
