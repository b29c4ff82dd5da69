//! `llama cvector`: derives a control vector from pairs of contrasting prompts.

use std::collections::BTreeMap;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use engine::adapter::{Contrast, ContrastError, DirectionMethod, LayerOutputs};
use engine::context::{Batch, Context, ContextParams, DecodeError, SeqSet};
use engine::sample::Token;
use engine::vocab::Vocab;
use serde_json::json;

use crate::args::values::positive;
use crate::args::{ComputeArgs, HubArgs, LoadArgs, ModelArgs};
use crate::commands::stdout;
use crate::failure::{Failure, Outcome};
use crate::loading::{no_context, warn_of_threads};
use crate::output::{OutputFile, check_absent, failed};
use crate::{format, input, interrupt, progress};

/// Examples at the end of the help.
const NOTES: &str = "\
Line N of both files is a pair, such as \"Act like a happy person.\" and \"Act like a sad person.\"
\\n in a line is a newline.

Examples:
  llama cvector model.gguf --positive happy.txt --negative sad.txt -o happy.gguf
  llama run model.gguf --control-vector happy.gguf=0.8 --control-vector-layer-range 5 20";

/// Arguments of `llama cvector`.
#[derive(Debug, Args)]
#[command(args_override_self = true, after_help = NOTES)]
pub struct CvectorArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    /// Prompts to move towards, one per line
    #[arg(long, value_name = "FILE", alias = "positive-file")]
    pub positive: PathBuf,
    /// Prompts to move away from, one per line
    #[arg(long, value_name = "FILE", alias = "negative-file")]
    pub negative: PathBuf,
    /// Direction of a layer: the principal component of all differences, or their mean
    #[arg(long, value_name = "METHOD", value_enum, default_value = "pca")]
    pub method: Method,
    /// Maximum number of iterations for the principal component
    #[arg(long, value_name = "N", default_value = "1000", value_parser = positive)]
    pub pca_iter: usize,
    /// File to write
    #[arg(
        short,
        long,
        value_name = "FILE",
        default_value = "control_vector.gguf",
        alias = "output-file"
    )]
    pub output: PathBuf,
    /// Replace an existing file
    #[arg(long)]
    pub force: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub hub: HubArgs,
    #[command(flatten)]
    pub load: LoadArgs,
    #[command(flatten)]
    pub compute: ComputeArgs,
}

/// Computation of directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Method {
    /// Principal component
    Pca,
    /// Mean
    Mean,
}

/// Tokens of a pair of prompts, padded to equal length.
type Pair = [Vec<Token>; 2];

/// Derives the vector, and writes the file.
pub fn run(args: &CvectorArgs) -> Outcome {
    check_absent(&args.output, args.force)?;
    let prompts = prompt_pairs(args)?;
    let path = args.model.file(&args.hub)?;
    let model = args.load.load(&path, args.compute.precision.mode, None)?;
    let of_model = |error: ContrastError| Failure::new(format_args!("{}: {error}", path.display()));
    let pairs = prompts
        .iter()
        .map(|(positive, negative)| pair(model.vocab(), positive, negative));
    let pairs: Vec<Pair> = pairs.collect();
    let mut contrast = Contrast::new(&model).map_err(of_model)?;
    let longest = pairs.iter().map(|[tokens, _]| tokens.len()).max().unwrap_or(1);
    let params = context_params(args, longest);
    warn_of_threads(params.n_threads);
    let mut context = Context::new(model.clone(), &params).map_err(|error| no_context(&model, error))?;
    let guard = interrupt::listen();
    context.set_cancel(Some(interrupt::flag()));
    let outputs = LayerOutputs::default();
    context.set_observer(Some(outputs.observer()));
    let bar = progress::timed("reading prompts", pairs.len());
    for (done, [positive, negative]) in pairs.iter().enumerate() {
        let positive = decoded(&mut context, &outputs, positive)?;
        let negative = decoded(&mut context, &outputs, negative)?;
        contrast.add(&positive, &negative).map_err(of_model)?;
        bar.set(done + 1);
        if guard.is_set() {
            return Err(Failure::Interrupted);
        }
    }
    drop(bar);
    let method = match args.method {
        Method::Pca => DirectionMethod::Pca {
            n_iterations: args.pca_iter,
        },
        Method::Mean => DirectionMethod::Mean,
    };
    let directions = contrast.directions(method).map_err(of_model)?;
    write(&args.output, &contrast, &directions)?;
    report(args, pairs.len(), directions.len())
}

/// Returns the parameters of a context for prompts of up to `n_tokens`.
fn context_params(args: &CvectorArgs, n_tokens: usize) -> ContextParams {
    let defaults = args.compute.params();
    ContextParams {
        n_ctx: n_tokens,
        n_batch: n_tokens,
        n_ubatch: n_tokens.min(defaults.n_ubatch),
        n_outputs_max: n_tokens,
        ..defaults
    }
}

/// Reads both files.
fn prompt_pairs(args: &CvectorArgs) -> Outcome<Vec<(String, String)>> {
    let (positive, negative) = (prompts(&args.positive)?, prompts(&args.negative)?);
    if positive.len() != negative.len() {
        return Err(Failure::new(format_args!(
            "{} has {}, but {} has {}; line N of both files is a pair",
            args.positive.display(),
            format::plural(positive.len(), "prompt"),
            args.negative.display(),
            negative.len()
        )));
    }
    Ok(positive.into_iter().zip(negative).collect())
}

/// Reads prompts, one per line. Empty lines are skipped, and escapes are replaced.
fn prompts(path: &Path) -> Outcome<Vec<String>> {
    let text = input::read(path)?;
    let lines = text.lines().filter(|line| !line.is_empty());
    let prompts: Vec<String> = lines.map(input::unescaped).collect();
    if prompts.is_empty() {
        return Err(Failure::new(format_args!(
            "{}: no prompts, expected one per line",
            path.display()
        )));
    }
    Ok(prompts)
}

/// Tokenizes a pair of prompts. The shorter one is padded with spaces, as in llama.cpp.
fn pair(vocab: &Vocab, positive: &str, negative: &str) -> Pair {
    let mut pair = [positive, negative].map(|text| vocab.tokenize(text, true, true));
    let longest = pair.iter().map(Vec::len).max().unwrap_or(0);
    let padding = vocab.tokenize(" ", false, false).last().copied();
    let padding = padding.or_else(|| pair.iter().flatten().last().copied());
    for tokens in &mut pair {
        tokens.resize(longest, padding.unwrap_or_default());
    }
    pair
}

/// Decodes a prompt, and returns the outputs of all layers.
fn decoded(context: &mut Context, outputs: &LayerOutputs, tokens: &[Token]) -> Outcome<BTreeMap<usize, Vec<f32>>> {
    let mut batch = Batch::new();
    for (pos, &token) in tokens.iter().enumerate() {
        batch.push(token, pos, SeqSet::one(0), true);
    }
    context.clear();
    outputs.take();
    match context.decode(&batch) {
        Err(DecodeError::Cancelled) => return Err(Failure::Interrupted),
        result => result?,
    };
    if let Some(rejection) = context.rejected().first() {
        return Err(Failure::new(format_args!(
            "a prompt cannot be decoded: {}",
            rejection.error
        )));
    }
    Ok(outputs.take())
}

fn write(path: &Path, contrast: &Contrast, directions: &[Vec<f32>]) -> Outcome {
    let mut output = OutputFile::create(path)?;
    let mut out = BufWriter::new(output.file());
    contrast.write(directions, &mut out)?;
    out.flush().map_err(|e| failed(path, &e))?;
    drop(out);
    output.finish(None)
}

fn report(args: &CvectorArgs, n_pairs: usize, n_layers: usize) -> Outcome {
    let mut out = stdout();
    let file = args.output.display();
    if args.json {
        let report = json!({ "file": file.to_string(), "pairs": n_pairs, "layers": n_layers });
        serde_json::to_writer_pretty(&mut out, &report)?;
        writeln!(out)?;
    } else {
        let (pairs, layers) = (format::plural(n_pairs, "pair"), format::plural(n_layers, "layer"));
        writeln!(out, "{file}: directions of {layers} from {pairs}")?;
    }
    Ok(out.flush()?)
}
