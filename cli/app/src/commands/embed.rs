//! `llama embed`: embeds texts, compares them, or ranks documents with a classifier.

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Args, ValueEnum};
use engine::builder::Pooling;
use engine::context::{Context, ContextParams, DecodeError};
use engine::finite::check_finite;
use engine::model::{Medium, Model};
use llama::parts::{IMAGE_MARK, MAX_TEXTS, MediaPrompt, Rendered, decode_texts, default_pooling, n_fitting};

use crate::args::values::{pooling_mode, positive, threads};
use crate::args::{AdapterArgs, HubArgs, LoadArgs, PrecisionArgs, ProjectorArgs};
use crate::commands::stdout;
use crate::failure::{Failure, Outcome};
use crate::loading::warn_of_threads;
use crate::naming::model_and_texts;
use crate::{fetch, format, images, input, interrupt};

/// Arguments of `llama embed`.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
pub struct EmbedArgs {
    /// GGUF file [default: the default model]
    #[arg(short, long, value_name = "FILE")]
    pub model: Option<PathBuf>,
    /// GGUF file (unless -m is given), then texts to embed [default: standard input]
    #[arg(value_name = "MODEL|TEXT")]
    pub words: Vec<OsString>,
    /// Text to embed (may be repeated)
    #[arg(short, long, value_name = "TEXT")]
    pub prompt: Vec<String>,
    /// File with one text per line; `-` reads standard input
    #[arg(short, long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Separator between the texts of --file [default: newline]
    #[arg(long, value_name = "TEXT", default_value = "\n", hide_default_value = true)]
    pub separator: String,
    /// Pooling of token embeddings: none, mean, cls, last, or rank
    ///
    /// `rank` returns the scores of a classifier. The default is the pooling that the file specifies,
    /// otherwise `mean` for encoders and `last` for other models.
    #[arg(long, value_name = "MODE", value_parser = pooling_mode)]
    pub pooling: Option<Pooling>,
    /// Norm to divide vectors by: l2, l1, max, or none
    #[arg(long, value_name = "NORM", default_value = "l2", value_parser = norm, allow_negative_numbers = true)]
    pub normalize: Norm,
    /// Output format
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub format: EmbedFormat,
    /// Print the cosine similarity of each pair of texts
    #[arg(long)]
    pub similarity: bool,
    /// Rank the texts as documents by relevance to this query, best first
    #[arg(long, value_name = "QUESTION", conflicts_with = "similarity")]
    pub rerank: Option<String>,
    /// Truncate texts that exceed the model's context
    #[arg(long)]
    pub truncate: bool,
    /// Image to embed after the texts (may be repeated or comma-separated)
    #[arg(long, value_name = "FILE", value_delimiter = ',', conflicts_with = "rerank")]
    pub image: Vec<PathBuf>,
    #[command(flatten)]
    pub projector: ProjectorArgs,
    #[command(flatten)]
    pub hub: HubArgs,
    #[command(flatten)]
    pub load: LoadArgs,
    #[command(flatten)]
    pub adapters: AdapterArgs,
    #[command(flatten)]
    pub precision: PrecisionArgs,
    /// Number of threads [default: one per core]
    #[arg(short, long, value_name = "N", value_parser = threads)]
    pub threads: Option<usize>,
    /// Maximum tokens per ubatch; a longer text gets a larger ubatch
    #[arg(short, long, value_name = "N", default_value = "2048", value_parser = positive)]
    pub batch_size: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum EmbedFormat {
    /// Numbers separated by spaces, a line per vector
    Text,
    /// OpenAI-style list of objects
    Json,
    /// JSON array of arrays
    Array,
}

/// Order of the norm that embeddings are divided by; 0 disables normalization.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Norm(pub f32);

fn norm(text: &str) -> Result<Norm, String> {
    match text {
        "none" => Ok(Norm(0.0)),
        "l1" => Ok(Norm(1.0)),
        "l2" => Ok(Norm(2.0)),
        "max" => Ok(Norm(f32::INFINITY)),
        // llama.cpp uses -1 for no normalization. Its 0 scales vectors to 16-bit integers and is not
        // supported.
        "-1" => Ok(Norm(0.0)),
        _ => {
            let order = text.parse().ok().filter(|order| (1..=100_u8).contains(order));
            let wrong = "expected l2, l1, max, none, or the order of the norm from 1 to 100 (-1: none)";
            order.map(|order| Norm(order.into())).ok_or_else(|| wrong.to_owned())
        }
    }
}

/// A text with its embeddings: one, or one per token.
struct Embedded {
    text: String,
    vectors: Vec<Vec<f32>>,
}

/// Embeds the texts and prints the result.
pub fn run(args: &EmbedArgs) -> Outcome {
    let (model, words) = model_and_texts(args.model.as_deref(), &args.hub, args.words.clone())?;
    let mut texts = texts(args, words)?;
    let path = fetch::model(model.as_deref(), &args.hub)?;
    let model = args.load.load(&path, args.precision.mode, None)?;
    let pooling = pooling(args, &model);
    let mut inputs = inputs(args, &model, &path, &texts)?;
    inputs.extend(image_inputs(args, &model)?);
    texts.extend(args.image.iter().map(|image| image.display().to_string()));
    let vectors = embed(args, &model, pooling, &inputs)?;
    let mut all: Vec<Embedded> = texts
        .into_iter()
        .zip(vectors)
        .map(|(text, vectors)| Embedded { text, vectors })
        .collect();
    if args.rerank.is_some() {
        return print_ranks(args, &model, all);
    }
    if pooling != Pooling::Rank {
        let vectors = all.iter_mut().flat_map(|e| &mut e.vectors);
        vectors.for_each(|v| normalize(v, args.normalize.0));
    }
    if args.similarity {
        return print_similarities(args, &all);
    }
    print_vectors(args, &all)
}

/// Returns the requested pooling, the pooling in the file, or a default for the model. Encoders that specify
/// no pooling use the mean. A causal model encodes the text in its last token.
fn pooling(args: &EmbedArgs, model: &Model) -> Pooling {
    match (args.pooling, &args.rerank) {
        (Some(pooling), _) => pooling,
        (None, Some(_)) => Pooling::Rank,
        (None, None) => default_pooling(model),
    }
}

/// Returns the texts from the arguments, `-p`, `-f`, or standard input.
fn texts(args: &EmbedArgs, words: Vec<String>) -> Outcome<Vec<String>> {
    let mut texts = words;
    texts.extend_from_slice(&args.prompt);
    let from = match &args.file {
        Some(path) => Some(input::read(path)?),
        None if texts.is_empty() && args.image.is_empty() => Some(input::standard_input()?),
        None => None,
    };
    if let Some(all) = from {
        let parts = all.split(args.separator.as_str());
        texts.extend(parts.filter(|part| !part.trim().is_empty()).map(str::to_owned));
    }
    if texts.is_empty() && args.image.is_empty() {
        return Err(Failure::new(
            "no text given; pass it as an argument, with -p, with -f, or on standard input",
        ));
    }
    Ok(texts)
}

/// Tokenizes each text, or each pair of query and document.
fn inputs(args: &EmbedArgs, model: &Model, path: &Path, texts: &[String]) -> Outcome<Vec<MediaPrompt>> {
    let vocab = model.vocab();
    let n_max = model.base().n_ctx_train();
    let template = model.metadata().optional::<&str>("tokenizer.chat_template.rerank");
    let template = template.map_err(|e| Failure::new(format_args!("{}: {e}", path.display())))?;
    let mut all = Vec::with_capacity(texts.len());
    for (i, text) in texts.iter().enumerate() {
        let mut tokens = match (&args.rerank, template) {
            (None, _) => vocab.tokenize(text, true, true),
            (Some(question), None) => vocab.tokenize_pair(question, text),
            (Some(question), Some(template)) => {
                let prompt = template.replace("{query}", question).replace("{document}", text);
                vocab.tokenize(&prompt, true, true)
            }
        };
        if tokens.is_empty() {
            return Err(Failure::new(format_args!("text {} has no tokens", i + 1)));
        }
        if tokens.len() > n_max && args.truncate {
            // Keep the last token, which may be a special token.
            tokens.drain(n_max - 1..tokens.len() - 1);
        }
        if tokens.len() > n_max {
            return Err(Failure::new(format_args!(
                "text {} has {}, but the model accepts at most {n_max}; use --truncate to shorten it",
                i + 1,
                format::plural(tokens.len(), "token")
            )));
        }
        all.push(MediaPrompt::from(tokens));
    }
    Ok(all)
}

/// Encodes the images. Each is an input.
fn image_inputs(args: &EmbedArgs, model: &Model) -> Outcome<Vec<MediaPrompt>> {
    if args.image.is_empty() {
        return Ok(Vec::new());
    }
    let defaults = ContextParams::default();
    let n_threads = args.threads.unwrap_or(defaults.n_threads);
    let params = ContextParams {
        n_threads,
        n_threads_batch: n_threads,
        precision: args.precision.mode.into(),
        ..defaults
    };
    let projector = images::projector(
        &args.projector,
        &args.hub,
        &args.load,
        args.precision.mode,
        &params,
        model,
    )?;
    let missing = "--image needs a projector: pass it with --mmproj, or put it next to the model as mmproj*.gguf";
    let mut projector = projector.ok_or_else(|| Failure::new(missing))?;
    let input = |file: &PathBuf| {
        let rows = images::rows(&mut projector, Medium::Image, file)?;
        let place = Rendered::plain(IMAGE_MARK.to_string());
        let tokens = projector
            .tokenized(model.vocab(), None, place, std::slice::from_ref(&rows))
            .tokens;
        Ok(MediaPrompt {
            tokens,
            media: vec![rows],
        })
    };
    args.image.iter().map(input).collect()
}

/// Computes the embeddings of all inputs in batches.
fn embed(
    args: &EmbedArgs,
    model: &Arc<Model>,
    pooling: Pooling,
    inputs: &[MediaPrompt],
) -> Outcome<Vec<Vec<Vec<f32>>>> {
    let defaults = ContextParams::default();
    let longest = inputs.iter().map(|input| input.tokens.len()).max().unwrap_or(1);
    let total: usize = inputs.iter().map(|input| input.tokens.len()).sum();
    let rows = inputs.iter().flat_map(|input| &input.media).map(|rows| rows.len());
    let n_batch = longest.max(args.batch_size.min(total));
    let n_threads = args.threads.unwrap_or(defaults.n_threads);
    let params = ContextParams {
        n_ctx: n_batch,
        n_batch,
        n_ubatch: n_batch,
        n_seq_max: inputs.len().min(MAX_TEXTS),
        n_threads,
        n_threads_batch: n_threads,
        precision: args.precision.mode.into(),
        pooling: Some(pooling),
        media_rows: rows.max().unwrap_or(0),
        ..defaults
    };
    warn_of_threads(n_threads);
    let mut context = Context::new(model.clone(), &params)?;
    args.adapters.apply(&mut context)?;
    let stop = interrupt::listen();
    context.set_cancel(Some(stop.flag()));
    let mut all = Vec::with_capacity(inputs.len());
    let mut rest = inputs;
    while !rest.is_empty() {
        let n = n_fitting(rest, n_batch);
        let (now, later) = rest.split_at(n);
        all.extend(embed_batch(&mut context, pooling, now)?);
        rest = later;
    }
    Ok(all)
}

fn embed_batch(context: &mut Context, pooling: Pooling, inputs: &[MediaPrompt]) -> Outcome<Vec<Vec<Vec<f32>>>> {
    match decode_texts(context, inputs) {
        Err(DecodeError::Cancelled) => return Err(Failure::Interrupted),
        result => result?,
    }
    if let Some(rejected) = context.rejected().first() {
        return Err(Failure::new(&rejected.error));
    }
    let mut first = 0;
    let vectors = inputs.iter().enumerate().map(|(seq, input)| {
        let range = first..first + input.tokens.len();
        first = range.end;
        match pooling {
            Pooling::None => range.filter_map(|i| context.logits(i)).map(<[f32]>::to_vec).collect(),
            _ => context.embedding(seq).map(<[f32]>::to_vec).into_iter().collect(),
        }
    });
    let vectors: Vec<Vec<Vec<f32>>> = vectors.collect();
    vectors.iter().flatten().try_for_each(|vector| check_finite(vector))?;
    Ok(vectors)
}

/// Divides a vector by its norm of order `p`; order 0 leaves it unchanged. Zero vectors remain zero.
fn normalize(vector: &mut [f32], p: f32) {
    let size = |x: &f32| f64::from(x.abs());
    let norm = match p {
        0.0 => return,
        p if p.is_infinite() => vector.iter().map(size).fold(0.0, f64::max),
        p => {
            let sum: f64 = vector.iter().map(|x| size(x).powf(p.into())).sum();
            sum.powf(1.0 / f64::from(p))
        }
    };
    if norm > 0.0 {
        vector.iter_mut().for_each(|x| *x = (f64::from(*x) / norm) as f32);
    }
}

fn print_vectors(args: &EmbedArgs, all: &[Embedded]) -> Outcome {
    let mut out = stdout();
    match args.format {
        EmbedFormat::Text => {
            for vector in all.iter().flat_map(|e| &e.vectors) {
                let values: Vec<_> = vector.iter().map(|x| format!("{x:.6}")).collect();
                writeln!(out, "{}", values.join(" "))?;
            }
        }
        EmbedFormat::Array => {
            let vectors: Vec<_> = all.iter().flat_map(|e| &e.vectors).collect();
            serde_json::to_writer(&mut out, &vectors)?;
            writeln!(out)?;
        }
        EmbedFormat::Json => {
            let entry = |(index, e): (usize, &Embedded)| {
                let embedding = match &e.vectors[..] {
                    [one] if args.pooling != Some(Pooling::None) => serde_json::json!(one),
                    several => serde_json::json!(several),
                };
                serde_json::json!({ "object": "embedding", "index": index, "embedding": embedding })
            };
            let data: Vec<_> = all.iter().enumerate().map(entry).collect();
            let list = serde_json::json!({ "object": "list", "data": data });
            serde_json::to_writer_pretty(&mut out, &list)?;
            writeln!(out)?;
        }
    }
    Ok(out.flush()?)
}

/// Prints the cosine similarity of each pair of texts.
fn print_similarities(args: &EmbedArgs, all: &[Embedded]) -> Outcome {
    let vectors: Vec<&Vec<f32>> = all.iter().flat_map(|e| e.vectors.first()).collect();
    if all.iter().any(|e| e.vectors.len() != 1) {
        return Err(Failure::new(
            "--similarity requires one vector per text; choose another --pooling",
        ));
    }
    let rows: Vec<Vec<f32>> = vectors
        .iter()
        .map(|a| vectors.iter().map(|b| cosine(a, b)).collect())
        .collect();
    let mut out = stdout();
    if args.format != EmbedFormat::Text {
        serde_json::to_writer(&mut out, &rows)?;
        writeln!(out)?;
        return Ok(out.flush()?);
    }
    for (row, e) in rows.iter().zip(all) {
        let cells: Vec<_> = row.iter().map(|x| format!("{x:6.3}")).collect();
        writeln!(out, "{}  {}", cells.join(" "), shortened(&e.text))?;
    }
    Ok(out.flush()?)
}

fn cosine(a: &[f32], b: &[f32]) -> f32 {
    let dot = |a: &[f32], b: &[f32]| -> f64 { a.iter().zip(b).map(|(x, y)| f64::from(x * y)).sum() };
    let norms = (dot(a, a) * dot(b, b)).sqrt();
    if norms > 0.0 { (dot(a, b) / norms) as f32 } else { 0.0 }
}

/// Prints the documents, best first.
fn print_ranks(args: &EmbedArgs, model: &Model, all: Vec<Embedded>) -> Outcome {
    let score = |e: &Embedded| e.vectors.first().and_then(|v| v.first()).copied().unwrap_or(f32::NAN);
    let mut ranked: Vec<(usize, f32, &Embedded)> = all.iter().enumerate().map(|(i, e)| (i, score(e), e)).collect();
    ranked.sort_by(|a, b| b.1.total_cmp(&a.1));
    let mut out = stdout();
    if args.format == EmbedFormat::Text {
        for (_, score, e) in &ranked {
            writeln!(out, "{score:9.4}  {}", shortened(&e.text))?;
        }
    } else {
        let entry = |(index, score, e): &(usize, f32, &Embedded)| {
            let scores: Vec<f32> = e.vectors.first().cloned().unwrap_or_default();
            serde_json::json!({ "index": index, "relevance_score": score, "scores": scores })
        };
        let results: Vec<_> = ranked.iter().map(entry).collect();
        let list = serde_json::json!({ "model": model.arch().name, "results": results });
        serde_json::to_writer_pretty(&mut out, &list)?;
        writeln!(out)?;
    }
    Ok(out.flush()?)
}

/// Returns the first line of a text, shortened to fit next to numbers.
fn shortened(text: &str) -> String {
    const MAX: usize = 60;
    let line = text.lines().next().unwrap_or_default();
    match line.char_indices().nth(MAX) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normalize_gives_unit_length() {
        let normalized = |p: f32| {
            let mut v = [3.0, -4.0];
            normalize(&mut v, p);
            v
        };
        assert_eq!(normalized(2.0), [0.6, -0.8]);
        assert_eq!(normalized(f32::INFINITY), [0.75, -1.0]);
        assert_eq!(normalized(0.0), [3.0, -4.0]);
        let mut zeros = [0.0; 3];
        normalize(&mut zeros, 2.0);
        assert_eq!(zeros, [0.0; 3]);
    }

    #[test]
    fn batches_are_filled_up() {
        let inputs: Vec<MediaPrompt> = [3, 3, 5].map(|n| vec![0; n].into()).into();
        assert_eq!(n_fitting(&inputs, 6), 2);
        assert_eq!(n_fitting(&inputs, 100), 3);
        assert_eq!(n_fitting(&inputs[2..], 1), 1);
        assert_eq!(n_fitting(&vec![vec![0].into(); 100], 1000), MAX_TEXTS);
    }

    #[test]
    fn cosine_compares_directions() {
        assert_eq!(cosine(&[1.0, 0.0], &[5.0, 0.0]), 1.0);
        assert_eq!(cosine(&[1.0, 0.0], &[0.0, 2.0]), 0.0);
        assert_eq!(cosine(&[0.0], &[0.0]), 0.0);
    }
}
