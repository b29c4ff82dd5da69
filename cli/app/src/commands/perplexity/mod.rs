//! `llama perplexity`: measures a model with a text, with another model, or with tasks.

mod args;
mod report;
mod tasks;

use std::ffi::OsString;
use std::io::BufWriter;
use std::path::Path;
use std::sync::Arc;

use clap::Parser;
use engine::context::{Context, ContextParams, DecodeError};
use engine::measure::{
    BaseFormat, BaseReader, BaseRow, BaseWriter, Corpus, CorpusStep, LogProbs, MeasureError, ModelComparison,
    Perplexity, Scored, Summary, check_model, decode_step, logits_at,
};
use engine::model::Model;
use engine::sample::Token;
use rayon::prelude::*;

pub use args::PerplexityArgs;
pub use report::comparison_json;

use crate::failure::{Failure, Outcome};
use crate::loading::{no_context, warn_of_threads};
use crate::output::{OutputFile, failed};
use crate::{input, interrupt, progress};

/// Measures the model and prints the result.
pub fn run(args: &PerplexityArgs) -> Outcome {
    args.check()?;
    if let Some(kind) = args.task_kind() {
        return tasks::run(args, kind);
    }
    match (&args.kl_divergence_base, &args.against) {
        (Some(base), _) if args.kl_divergence => compare_with_file(args, base),
        (_, Some(other)) => compare_with_model(args, other),
        (base, None) => perplexity(args, base.as_deref()),
    }
}

/// Loads a model for chunks or tasks that are decoded together.
pub(super) fn load(args: &PerplexityArgs, path: &Path, params: &ContextParams) -> Outcome<Arc<Model>> {
    warn_of_threads(params.n_threads);
    let memory = params.memory(params.n_ctx);
    let model = args.load.load(path, args.compute.precision.mode, Some(memory))?;
    check_model(&model).map_err(|error| Failure::new(format_args!("{}: {error}", path.display())))?;
    Ok(model)
}

/// Creates a context that Ctrl-C interrupts.
pub(super) fn context(args: &PerplexityArgs, model: Arc<Model>, params: &ContextParams) -> Outcome<Context> {
    let mut context = Context::new(model.clone(), params).map_err(|error| no_context(&model, error))?;
    args.adapters.apply(&mut context)?;
    context.set_cancel(Some(interrupt::flag()));
    Ok(context)
}

/// Converts an error. `Cancelled` is an interrupt.
pub(super) fn of_measure(error: MeasureError) -> Failure {
    match error {
        MeasureError::Decode(DecodeError::Cancelled) => Failure::Interrupted,
        error => error.into(),
    }
}

/// Reads the text and divides it into chunks.
fn corpus(args: &PerplexityArgs, model: &Model) -> Outcome<Corpus> {
    let path = args.text()?;
    let text = input::read(path)?;
    let of_text = |error| Failure::new(format_args!("{}: {error}", path.display()));
    Corpus::new(model.vocab(), &text, args.ctx_size, args.chunks).map_err(of_text)
}

/// Decodes all steps in all contexts, and passes each step to `visit`.
fn for_each_step(
    corpus: &Corpus,
    n_batch: usize,
    contexts: &mut [Context],
    visit: &mut dyn FnMut(&[Context], &CorpusStep) -> Outcome,
) -> Outcome {
    let guard = interrupt::listen();
    let bar = progress::timed("measuring", corpus.n_chunks());
    for step in corpus.steps(n_batch, 0, false) {
        for context in contexts.iter_mut() {
            decode_step(context, &step).map_err(of_measure)?;
        }
        if guard.is_set() {
            return Err(Failure::Interrupted);
        }
        visit(contexts, &step)?;
        bar.set(step.n_done);
    }
    Ok(())
}

/// Logits of a scored position with the token that follows.
type Row<'a> = (&'a [f32], Token);

/// Returns the logits of the scored positions of a step.
fn rows<'a>(context: &'a Context, step: &CorpusStep) -> Outcome<Vec<Row<'a>>> {
    let row = |scored: &Scored| Ok((logits_at(context, scored)?, scored.token));
    step.scored
        .iter()
        .map(row)
        .collect::<Result<_, _>>()
        .map_err(of_measure)
}

/// Computes the perplexity, and writes log-probabilities to `base`.
fn perplexity(args: &PerplexityArgs, base: Option<&Path>) -> Outcome {
    let params = args.context_params(args.ctx_size);
    let model = load(args, &args.model()?, &params)?;
    let corpus = corpus(args, &model)?;
    let mut contexts = [context(args, model.clone(), &params)?];
    let mut output = base.map(OutputFile::create).transpose()?;
    let mut writer = None;
    let mut result = Perplexity::default();
    let format = if args.compact {
        BaseFormat::Compact
    } else {
        BaseFormat::Full
    };
    let path = base.unwrap_or(Path::new(""));
    for_each_step(&corpus, args.n_batch(), &mut contexts, &mut |contexts, step| {
        let rows = rows(&contexts[0], step)?;
        if let (None, Some(output), Some((logits, _))) = (&writer, &mut output, rows.first()) {
            let file = output.file().try_clone().map_err(|e| failed(path, &e))?;
            let buffered = BufWriter::with_capacity(1 << 20, file);
            writer = Some(BaseWriter::new(buffered, format, &corpus, logits.len()).map_err(|e| failed(path, &e))?);
        }
        if let Some(writer) = &mut writer {
            writer.write(&rows).map_err(|e| failed(path, &e))?;
        }
        let nlls: Vec<f64> = rows
            .par_iter()
            .map(|&(logits, token)| -LogProbs::new(logits).of(token))
            .collect();
        nlls.into_iter().for_each(|nll| result.add(nll));
        Ok(())
    })?;
    if let (Some(writer), Some(output)) = (writer, output) {
        writer.finish().map_err(|e| failed(path, &e))?;
        output.finish(None)?;
    }
    report::perplexity(args, &corpus, &result)
}

/// Compares a model with the log-probabilities of a file.
fn compare_with_file(args: &PerplexityArgs, base: &Path) -> Outcome {
    let of_base = |error: MeasureError| match error {
        MeasureError::Decode(_) => of_measure(error),
        error => Failure::new(format_args!("{}: {error}", base.display())),
    };
    let mut reader = BaseReader::open(base).map_err(of_base)?;
    let params = args.context_params(reader.n_ctx());
    let model = load(args, &args.model()?, &params)?;
    let vocab = model.vocab();
    let tokens = reader.tokens().to_vec();
    let bos = if vocab.add_bos() { vocab.bos() } else { None };
    let corpus = Corpus::of_tokens(tokens, reader.n_ctx(), args.chunks, bos).map_err(of_base)?;
    let mut contexts = [context(args, model.clone(), &params)?];
    let mut result = ModelComparison::default();
    for_each_step(&corpus, args.n_batch(), &mut contexts, &mut |contexts, step| {
        let rows = rows(&contexts[0], step)?;
        let of_base_row = |_| reader.next_row().map_err(of_base);
        let base_rows = rows.iter().map(of_base_row).collect::<Outcome<Vec<_>>>()?;
        check_vocab(reader.n_vocab(), &rows).map_err(of_base)?;
        add(&mut result, &rows, &base_rows);
        Ok(())
    })?;
    report::comparison(args, &corpus, &result)
}

/// Compares a model with a base model, and prints the result.
fn compare_with_model(args: &PerplexityArgs, other: &Path) -> Outcome {
    let (corpus, result) = compared_with_model(args, other)?;
    report::comparison(args, &corpus, &result)
}

/// Compares a model with a base model under the default options of `llama perplexity`.
pub fn compared(model: &Path, base: &Path, text: &Path, arch: &str, n_threads: Option<usize>) -> Outcome<Summary> {
    let option = |name: &str, path: &Path| {
        let mut option = OsString::from(name);
        option.push(path);
        option
    };
    let mut line = vec![
        OsString::from("perplexity"),
        option("--model=", model),
        option("--file=", text),
        option("--against=", base),
        OsString::from(format!("--arch={arch}")),
    ];
    line.extend(n_threads.map(|n| OsString::from(format!("--threads={n}"))));
    let args = Line::try_parse_from(line)?.args;
    Ok(compared_with_model(&args, base)?.1.summary())
}

/// Parser of the options that [`compared`] passes.
#[derive(Parser)]
struct Line {
    #[command(flatten)]
    args: PerplexityArgs,
}

fn compared_with_model(args: &PerplexityArgs, other: &Path) -> Outcome<(Corpus, ModelComparison)> {
    let params = args.context_params(args.ctx_size);
    let model = load(args, &args.model()?, &params)?;
    let base = load(args, &args.hub.file_of(other)?, &params)?;
    let (own, of_base) = (corpus(args, &model)?, corpus(args, &base)?);
    if own != of_base {
        return Err(Failure::new(format_args!(
            "{}: the text has other tokens than in the model; both must have the same vocabulary",
            other.display()
        )));
    }
    let mut contexts = [context(args, model, &params)?, context(args, base, &params)?];
    let mut result = ModelComparison::default();
    for_each_step(&own, args.n_batch(), &mut contexts, &mut |contexts, step| {
        let (rows, base_rows) = (rows(&contexts[0], step)?, rows(&contexts[1], step)?);
        check_vocab(base_rows.first().map_or(0, |row| row.0.len()), &rows)?;
        let base_rows: Vec<_> = base_rows
            .par_iter()
            .map(|&(logits, _)| BaseRow::Exact(LogProbs::new(logits)))
            .collect();
        add(&mut result, &rows, &base_rows);
        Ok(())
    })?;
    Ok((own, result))
}

fn check_vocab(base: usize, rows: &[Row<'_>]) -> Result<(), MeasureError> {
    match rows.first() {
        Some((logits, _)) if logits.len() != base => Err(MeasureError::OtherVocab {
            base,
            model: logits.len(),
        }),
        _ => Ok(()),
    }
}

/// Adds the comparison of rows, in their order.
fn add(result: &mut ModelComparison, rows: &[Row<'_>], base: &[BaseRow<'_>]) {
    let compared: Vec<_> = rows
        .par_iter()
        .zip(base)
        .map(|(&(logits, token), base)| LogProbs::new(logits).compare(base, token))
        .collect();
    compared.into_iter().for_each(|compared| result.add(compared));
}
