//! `llama imatrix`: measures how strongly each column of a model's matrices is used.

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use engine::context::{Context, ContextParams, DecodeError, MAX_SEQUENCES};
use engine::importance::{Collector, Entry, ImportanceError, ImportanceMatrix};
use engine::measure::{Corpus, MeasureError, check_model, decode_step};
use engine::model::Model;
use serde_json::json;
use tracing::warn;

use crate::args::values::positive;
use crate::args::{BatchSizeArgs, ComputeArgs, HubArgs, LoadArgs, ModelArgs};
use crate::commands::stdout;
use crate::failure::{Failure, Outcome};
use crate::loading::{no_context, warn_of_threads};
use crate::output::{self, OutputFile, failed};
use crate::{format, input, interrupt, progress};

/// Examples at the end of the help.
const NOTES: &str = "\
Examples:
  llama imatrix model-f16.gguf -f calibration.txt -o model.imatrix.gguf
  llama imatrix --merge a.imatrix.gguf --merge b.imatrix.gguf -o both.imatrix.gguf
  llama imatrix --show model.imatrix.gguf";

/// Arguments of `llama imatrix`.
#[derive(Debug, Args)]
#[command(args_override_self = true, after_help = NOTES,
          mut_arg("first", |arg| arg.required_unless_present_any(["merge", "show"])))]
pub struct ImatrixArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    /// Calibration text; `-` reads standard input (may be repeated)
    #[arg(short, long, value_name = "FILE")]
    pub file: Vec<PathBuf>,
    /// File to write
    #[arg(
        short,
        long,
        value_name = "FILE",
        default_value = "imatrix.gguf",
        alias = "output-file"
    )]
    pub output: PathBuf,
    /// Add the sums of a file; without a text, only write the sum (may be repeated)
    #[arg(long, value_name = "FILE", alias = "in-file")]
    pub merge: Vec<PathBuf>,
    /// Print the tensors of a file, and write nothing
    #[arg(long, value_name = "FILE", conflicts_with_all = ["merge", "file", "resume"])]
    pub show: Option<PathBuf>,
    /// Continue the output file of an earlier run with the same texts
    #[arg(long, conflicts_with = "merge")]
    pub resume: bool,
    /// Write the output file after every N chunks, so that --resume can continue
    #[arg(long, value_name = "N", value_parser = positive, alias = "output-frequency")]
    pub save_every: Option<usize>,
    /// Include the output projection; a token embedding that serves as one is always included
    #[arg(long)]
    pub process_output: bool,
    /// Tokens of a chunk
    #[arg(short, long, value_name = "N", default_value = "512", value_parser = positive)]
    pub ctx_size: usize,
    /// Maximum number of chunks of each text [default: all]
    #[arg(long, value_name = "N", value_parser = positive)]
    pub chunks: Option<usize>,
    /// Number of chunks of each text to skip
    #[arg(long, value_name = "N", default_value = "0", aliases = ["from-chunk", "chunk"])]
    pub skip_chunks: usize,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub hub: HubArgs,
    #[command(flatten)]
    pub load: LoadArgs,
    #[command(flatten)]
    pub batch: BatchSizeArgs,
    #[command(flatten)]
    pub compute: ComputeArgs,
}

/// Collects, merges, or prints matrices.
pub fn run(args: &ImatrixArgs) -> Outcome {
    if let Some(path) = &args.show {
        return show(args, &open(path)?);
    }
    output::check(&args.output)?;
    let mut matrix = ImportanceMatrix::default();
    for path in &args.merge {
        let other = open(path)?;
        matrix
            .merge(&other)
            .map_err(|error| Failure::new(format_args!("{}: {error}", path.display())))?;
    }
    if args.model.given().is_none() && !args.hub.names_a_model() {
        save(&args.output, &matrix)?;
    } else {
        matrix = collect(args, matrix)?;
    }
    report(args, &matrix)
}

/// Reads a file in either format.
pub fn open(path: &Path) -> Outcome<ImportanceMatrix> {
    ImportanceMatrix::open(path).map_err(|error| match error {
        ImportanceError::Gguf(error) => error.into(),
        error => Failure::new(format_args!("{}: {error}", path.display())),
    })
}

fn save(path: &Path, matrix: &ImportanceMatrix) -> Outcome {
    let mut output = OutputFile::create(path)?;
    let mut out = BufWriter::with_capacity(1 << 20, output.file());
    matrix
        .write(&mut out)
        .map_err(|error| Failure::new(format_args!("cannot write {}: {error}", path.display())))?;
    out.flush().map_err(|error| failed(path, &error))?;
    drop(out);
    output.finish(None)
}

/// Decodes all texts, and returns the sums.
fn collect(args: &ImatrixArgs, matrix: ImportanceMatrix) -> Outcome<ImportanceMatrix> {
    if args.file.is_empty() {
        return Err(Failure::new("no text given; name a file with -f"));
    }
    if args.ctx_size < Corpus::MIN_CTX {
        return Err(Failure::new(format_args!(
            "--ctx-size must be at least {}",
            Corpus::MIN_CTX
        )));
    }
    let params = context_params(args);
    warn_of_threads(params.n_threads);
    let path = args.model.file(&args.hub)?;
    let model = args
        .load
        .load(&path, args.compute.precision.mode, Some(params.memory(params.n_ctx)))?;
    check_model(&model).map_err(|error| Failure::new(format_args!("{}: {error}", path.display())))?;
    let texts = args
        .file
        .iter()
        .map(|path| corpus(args, &model, path))
        .collect::<Outcome<Vec<_>>>()?;
    let n_skipped = args.skip_chunks * texts.len();
    let n_chunks: usize = texts.iter().map(Corpus::n_chunks).sum();
    let (matrix, done) = started(args, matrix)?;
    let mut run = Run {
        collector: Collector::new(matrix),
        context: Context::new(model.clone(), &params).map_err(|error| no_context(&model, error))?,
        bar: progress::timed("collecting", n_chunks - n_skipped),
        done: 0,
        to_skip: done,
        guard: interrupt::listen(),
    };
    run.context.set_cancel(Some(interrupt::flag()));
    let observer = run.collector.observer(&model, args.process_output);
    run.context.set_observer(Some(observer));
    for (text, path) in texts.iter().zip(&args.file) {
        run.text(args, text, path)?;
    }
    let Run { collector, context, .. } = run;
    drop(context);
    let matrix = collector.with(std::mem::take);
    save(&args.output, &matrix)?;
    Ok(matrix)
}

fn context_params(args: &ImatrixArgs) -> ContextParams {
    let n_batch = args.batch.ubatch();
    let n_seq_max = (n_batch / args.ctx_size).clamp(1, MAX_SEQUENCES);
    ContextParams {
        n_ctx: args.ctx_size.saturating_mul(n_seq_max),
        n_seq_max,
        n_batch,
        n_ubatch: n_batch,
        n_outputs_max: n_batch,
        ..args.compute.params()
    }
}

fn corpus(args: &ImatrixArgs, model: &Arc<Model>, path: &Path) -> Outcome<Corpus> {
    let text = input::read(path)?;
    let max_chunks = args.chunks.map(|n| n.saturating_add(args.skip_chunks));
    let corpus = Corpus::new(model.vocab(), &text, args.ctx_size, max_chunks);
    let corpus = corpus.map_err(|error| Failure::new(format_args!("{}: {error}", path.display())))?;
    if args.skip_chunks >= corpus.n_chunks() {
        return Err(Failure::new(format_args!(
            "{}: --skip-chunks skips the whole text of {}",
            path.display(),
            format::plural(corpus.n_chunks(), "chunk")
        )));
    }
    Ok(corpus)
}

/// Returns the matrix to continue, and the number of chunks that it contains of the texts.
fn started(args: &ImatrixArgs, mut matrix: ImportanceMatrix) -> Outcome<(ImportanceMatrix, usize)> {
    let names: Vec<String> = args.file.iter().map(|path| path.display().to_string()).collect();
    let chunk_size = args.ctx_size as u32;
    if args.resume && args.output.exists() {
        let old = open(&args.output)?;
        let is_same = old.chunk_size == chunk_size && names.starts_with(&old.datasets);
        if !is_same {
            return Err(Failure::new(format_args!(
                "{} was collected with other texts or another --ctx-size; leave out --resume to replace it",
                args.output.display()
            )));
        }
        let done = old.n_chunks as usize;
        matrix = old;
        matrix.datasets = names;
        return Ok((matrix, done));
    }
    matrix.datasets.extend(names);
    matrix.chunk_size = chunk_size;
    Ok((matrix, 0))
}

/// Progress of a collection.
struct Run {
    collector: Collector,
    context: Context,
    bar: progress::Bar,
    /// Number of chunks that were decoded or skipped.
    done: usize,
    /// Number of chunks that an earlier run has decoded.
    to_skip: usize,
    guard: interrupt::Guard,
}

impl Run {
    fn text(&mut self, args: &ImatrixArgs, text: &Corpus, path: &Path) -> Outcome {
        let old = self.to_skip.min(text.n_chunks() - args.skip_chunks);
        (self.to_skip, self.done) = (self.to_skip - old, self.done + old);
        let start = args.skip_chunks + old;
        let mut last = start;
        for step in text.steps(args.batch.ubatch(), start, true) {
            if let Err(error) = decode_step(&mut self.context, &step) {
                return Err(self.failure(error, path, last + 1));
            }
            if self.guard.is_set() {
                return Err(Failure::Interrupted);
            }
            let n_new = step.n_done - last;
            if n_new == 0 {
                continue;
            }
            let before = self.done;
            (last, self.done) = (step.n_done, self.done + n_new);
            self.collector.with(|matrix| matrix.n_chunks += n_new as u32);
            self.bar.set(self.done);
            if args.save_every.is_some_and(|every| before / every != self.done / every) {
                self.collector.with(|matrix| save(&args.output, matrix))?;
            }
        }
        Ok(())
    }

    fn failure(&self, error: MeasureError, path: &Path, chunk: usize) -> Failure {
        match (self.collector.failure(), error) {
            (Some(failure), _) => Failure::new(format_args!("{}, chunk {chunk}: {failure}", path.display())),
            (None, MeasureError::Decode(DecodeError::Cancelled)) => Failure::Interrupted,
            (None, error) => error.into(),
        }
    }
}

/// Prints the size of the result, and warns of experts without data.
fn report(args: &ImatrixArgs, matrix: &ImportanceMatrix) -> Outcome {
    let unused: Vec<_> = matrix
        .entries
        .iter()
        .filter(|(_, entry)| entry.n_unused() > 0)
        .collect();
    let n_unused: usize = unused.iter().map(|(_, entry)| entry.n_unused()).sum();
    if n_unused > 0 && !args.json {
        let experts = format::plural(n_unused, "expert matrix").replace("matrixs", "matrices");
        let tensors = format::plural(unused.len(), "tensor");
        warn!("{experts} of {tensors} were never used; `llama quantize` gives them the mean of the others");
    }
    let mut out = stdout();
    if args.json {
        let report = json!({
            "file": args.output.display().to_string(),
            "tensors": matrix.entries.len(),
            "chunks": matrix.n_chunks,
            "chunk_size": matrix.chunk_size,
            "unused_experts": n_unused,
        });
        serde_json::to_writer_pretty(&mut out, &report)?;
        writeln!(out)?;
    } else {
        writeln!(
            out,
            "{}: {}, {} of {} tokens",
            args.output.display(),
            format::plural(matrix.entries.len(), "tensor"),
            format::plural(matrix.n_chunks as usize, "chunk"),
            matrix.chunk_size
        )?;
    }
    Ok(out.flush()?)
}

/// Prints all tensors with the mean square of their inputs.
fn show(args: &ImatrixArgs, matrix: &ImportanceMatrix) -> Outcome {
    let mut out = stdout();
    if args.json {
        let tensors = matrix.entries.iter().map(|(name, entry)| {
            json!({
                "name": name,
                "values": entry.squares.len(),
                "counts": entry.counts,
                "mean_square": mean_square(entry),
            })
        });
        let report = json!({
            "datasets": matrix.datasets,
            "chunks": matrix.n_chunks,
            "chunk_size": matrix.chunk_size,
            "tensors": tensors.collect::<Vec<_>>(),
        });
        serde_json::to_writer_pretty(&mut out, &report)?;
        writeln!(out)?;
        return Ok(out.flush()?);
    }
    writeln!(out, "texts: {}", matrix.datasets.join(", "))?;
    writeln!(out, "chunks: {} of {} tokens", matrix.n_chunks, matrix.chunk_size)?;
    for (name, entry) in &matrix.entries {
        let n = entry.squares.len();
        let unused = match entry.n_unused() {
            0 => String::new(),
            unused => format!("  ({unused} of {} unused)", entry.counts.len()),
        };
        writeln!(out, "{name:<40} {n:>9}  mean square {:.6}{unused}", mean_square(entry))?;
    }
    Ok(out.flush()?)
}

/// Returns the mean square of all inputs.
fn mean_square(entry: &Entry) -> f64 {
    let n_counts = entry.counts.len().max(1);
    let columns = entry.squares.len() / n_counts;
    let inputs: u64 = entry.counts.iter().sum();
    let squares: f64 = entry.squares.iter().sum();
    squares / (inputs as f64 * columns as f64).max(1.0)
}
