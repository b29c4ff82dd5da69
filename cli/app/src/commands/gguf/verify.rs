//! `llama gguf verify`: checks a whole file.

use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use engine::gguf::{GgufSet, TensorInfo, Value};
use kernels::{can_decode, dequantize_row};
use rayon::prelude::*;

use crate::commands::stdout;
use crate::failure::{Failure, Outcome};
use crate::format;
use crate::printable::printable;

/// Arguments of `llama gguf verify`.
#[derive(Debug, Args)]
#[command(
    after_help = "Checks that all parts are complete, that every weight is finite, that the tensors match the architecture, and that token ids are in the vocabulary."
)]
pub struct VerifyArgs {
    /// GGUF file, or the first of several
    pub file: PathBuf,
}

/// Value that is not a finite number.
struct Wrong {
    tensor: String,
    row: usize,
    column: usize,
    value: f32,
}

/// Checks a model and prints a line of success.
pub fn run(args: &VerifyArgs) -> Outcome {
    let set = GgufSet::open(&args.file)?;
    let mut errors = weight_errors(&set);
    errors.extend(token_errors(&set));
    let mut notes = Vec::new();
    match declaration(&set, args) {
        Ok(note) => notes.extend(note),
        Err(error) => errors.push(error),
    }
    for shard in set.shards() {
        shard.mapping().check_unchanged().map_err(|e| e.in_file(shard.path()))?;
    }
    if let Some(first) = errors.first() {
        let more = match errors.len() {
            1 => String::new(),
            n => format!(" (and {})", format::plural(n - 1, "other error")),
        };
        let first = printable(first);
        return Err(Failure::new(format_args!("{}: {first}{more}", args.file.display())));
    }
    let mut out = stdout();
    let bytes: usize = set.tensors().map(|(_, t)| t.bytes).sum();
    writeln!(
        out,
        "{}: {} in {} are complete and finite, {}",
        args.file.display(),
        format::plural(set.n_tensors(), "tensor"),
        format::plural(set.shards().len(), "file"),
        format::bytes(bytes)
    )?;
    for note in notes {
        writeln!(out, "note: {note}")?;
    }
    Ok(out.flush()?)
}

/// Returns a sentence for each tensor with a value that is not finite.
fn weight_errors(set: &GgufSet) -> Vec<String> {
    let tensors: Vec<(usize, &TensorInfo)> = set.tensors().collect();
    let wrong = |&(shard, tensor): &(usize, &TensorInfo)| first_wrong(set.shards()[shard].tensor_data(tensor), tensor);
    let found: Vec<Wrong> = tensors.iter().filter_map(wrong).collect();
    let describe = |w: Wrong| {
        let Wrong {
            tensor,
            row,
            column,
            value,
        } = w;
        format!("tensor \"{tensor}\" has the value {value} in row {row}, column {column}; the file is damaged")
    };
    found.into_iter().map(describe).collect()
}

/// Returns the first value of a tensor that is not finite. Rows are decoded in parallel.
fn first_wrong(data: &[u8], tensor: &TensorInfo) -> Option<Wrong> {
    if !can_decode(tensor.ty) {
        return None;
    }
    let n_columns = tensor.ne[0];
    let row_bytes = tensor.bytes / (tensor.n_elements() / n_columns);
    let decode = |row: &mut Vec<f32>, (i, bytes): (usize, &[u8])| {
        row.resize(n_columns, 0.0);
        dequantize_row(tensor.ty, bytes, row);
        let column = row.iter().position(|value| !value.is_finite())?;
        Some(Wrong {
            tensor: tensor.name.clone(),
            row: i,
            column,
            value: row[column],
        })
    };
    data.par_chunks(row_bytes)
        .enumerate()
        .map_init(Vec::new, decode)
        .find_first(Option::is_some)
        .flatten()
}

/// Returns a sentence for each token id outside the vocabulary, and for a vocabulary that exceeds the embeddings.
fn token_errors(set: &GgufSet) -> Vec<String> {
    let metadata = set.metadata();
    let tokens = metadata.get("tokenizer.ggml.tokens").and_then(Value::as_array);
    let Some(n_tokens) = tokens.map(engine::gguf::Array::len) else {
        return Vec::new();
    };
    let mut errors = Vec::new();
    for (key, value) in metadata.iter() {
        let is_id = key.starts_with("tokenizer.ggml.") && key.ends_with("_token_id");
        // Files without this token store the largest u32.
        let id = value.as_u64().filter(|&id| is_id && id != u64::from(u32::MAX));
        if let Some(id) = id.filter(|&id| id >= n_tokens as u64) {
            errors.push(format!(
                "key \"{key}\" is {id}, but the vocabulary has {n_tokens} tokens"
            ));
        }
    }
    if let Some((_, embedding)) = set.tensor("token_embd.weight")
        && embedding.ne[1] < n_tokens
    {
        let rows = embedding.ne[1];
        errors.push(format!(
            "the vocabulary has {n_tokens} tokens, but \"token_embd.weight\" has {rows} rows"
        ));
    }
    errors
}

/// Compares the tensors with the declaration of the architecture. Returns a note if there is none.
fn declaration(set: &GgufSet, args: &VerifyArgs) -> Result<Option<String>, String> {
    let name: Option<&str> = set.optional("general.architecture").map_err(|e| e.to_string())?;
    let Some(name) = name else {
        return Ok(Some("the file names no architecture".to_owned()));
    };
    let registered = match archs::find(name) {
        Some(registered) => Some(*registered),
        None => crate::declared::find(name, false)?,
    };
    let Some(registered) = registered else {
        return Ok(Some(format!("architecture `{}` is not supported", printable(name))));
    };
    if set.shards().len() > 1 {
        return Ok(Some(
            "tensors of split models are not compared with the architecture".to_owned(),
        ));
    }
    match engine::model::declare_header(set.first().header(), &args.file, registered.arch, name) {
        Ok(_) => Ok(None),
        Err(error) => Err(error.to_string()),
    }
}
