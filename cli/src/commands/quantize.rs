//! `llama quantize`: writes a model file with weights in smaller types.

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use engine::gguf::{GgufSet, Value};
use engine::importance::ImportanceMatrix;
use engine::quantize::{self, Mixture, Options, PlannedTensor, QuantizeError, QuantizePlan};
use kernels::GgmlType;
use regex_lite::Regex;
use serde_json::json;
use tracing::warn;

use crate::args::override_kv;
use crate::commands::{imatrix, stdout};
use crate::failure::{Failure, Outcome};
use crate::output::{OutputFile, failed};
use crate::{format, interrupt, progress};

/// Examples at the end of the help.
const NOTES: &str = "\
Examples:
  llama quantize model-f16.gguf model-q4_k_m.gguf q4_k_m
  llama quantize model-f16.gguf model.gguf q4_k_m --tensor-type 'ffn_down_exps=q5_K' --dry-run";

/// Arguments of `llama quantize`.
#[derive(Debug, Args)]
#[command(args_override_self = true, after_help = NOTES)]
pub struct QuantizeArgs {
    /// GGUF file to read, or the first part of a split model
    #[arg(value_name = "IN")]
    pub input: PathBuf,
    /// GGUF file to write
    #[arg(value_name = "OUT")]
    pub output: PathBuf,
    /// Mixture of types, such as q4_k_m, q6_k, q8_0, or f16
    #[arg(value_name = "TYPE", value_parser = mixture)]
    pub mixture: Mixture,
    /// Type of the tensors whose name matches a regular expression (may be repeated; the first match counts)
    #[arg(long, value_name = "REGEX=TYPE", value_parser = rule)]
    pub tensor_type: Vec<(Regex, GgmlType)>,
    /// Type of the output matrix, or of a token embedding that serves as one
    #[arg(long, value_name = "TYPE", value_parser = encodable)]
    pub output_tensor_type: Option<GgmlType>,
    /// Type of the token embedding
    #[arg(long, value_name = "TYPE", value_parser = encodable)]
    pub token_embedding_type: Option<GgmlType>,
    /// Store all matrices in the same type
    #[arg(long)]
    pub pure: bool,
    /// Keep the output matrix as it is
    #[arg(long)]
    pub leave_output_tensor: bool,
    /// Accept weights that are quantized already, although errors add up
    #[arg(long)]
    pub allow_requantize: bool,
    /// Importance matrix that `llama imatrix` or llama.cpp wrote; lowers the error of important columns
    #[arg(long, value_name = "FILE")]
    pub imatrix: Option<PathBuf>,
    /// Set a metadata key; TYPE is int, float, bool, or str (may be repeated)
    #[arg(long, value_name = "KEY=TYPE:VALUE", value_parser = override_kv)]
    pub override_kv: Vec<(String, Value)>,
    /// Print the type and size of each tensor, and write nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Writes the file and prints its properties.
pub fn run(args: &QuantizeArgs) -> Outcome {
    let source = GgufSet::open(&args.input)?;
    let importance = args.imatrix.as_deref().map(imatrix::open).transpose()?.map(Arc::new);
    let options = Options {
        mixture: args.mixture,
        pure: args.pure,
        keep_output: args.leave_output_tensor,
        output: args.output_tensor_type,
        embedding: args.token_embedding_type,
        rules: args.tensor_type.clone(),
        allow_requantize: args.allow_requantize,
        importance: importance.clone(),
    };
    let of_input = |error: QuantizeError| match error {
        QuantizeError::Stopped => Failure::Interrupted,
        QuantizeError::Gguf(error) => error.into(),
        error => Failure::new(format_args!("{}: {error}", args.input.display())),
    };
    let plan = QuantizePlan::new(&source, &options).map_err(of_input)?;
    for (pattern, _) in &args.tensor_type {
        if !plan.tensors.iter().any(|tensor| pattern.is_match(&tensor.name)) {
            warn!("--tensor-type {}: no tensor has such a name", pattern.as_str());
        }
    }
    for tensor in plan.tensors.iter().filter(|_| !args.json && !args.dry_run) {
        if let Some(wanted) = tensor.wanted {
            let n = tensor.shape[0];
            let (name, to) = (&tensor.name, tensor.to);
            warn!("{name}: rows of {n} elements are not whole blocks of {wanted}; the type is {to}");
        }
    }
    if !args.dry_run {
        check_names(args, &source)?;
        warn_of_importance(&plan);
        let mut overrides: Vec<_> = args.override_kv.iter().map(|pair| typed(&source, pair)).collect();
        overrides.extend(
            args.imatrix
                .iter()
                .zip(&importance)
                .flat_map(|(path, matrix)| origin(path, matrix)),
        );
        write(&args.output, &source, &plan, &overrides, &of_input)?;
    }
    print(args, &plan)
}

/// Warns of matrices that the importance matrix has no data for.
fn warn_of_importance(plan: &QuantizePlan) {
    if plan.importance.is_none() {
        return;
    }
    let encoded = || plan.tensors.iter().filter(|tensor| tensor.is_encoded());
    let missing: Vec<_> = encoded().filter(|tensor| tensor.weighted_by.is_none()).collect();
    if let Some(first) = missing.first() {
        let tensors = format::plural(missing.len(), "tensor");
        warn!("{tensors} have no importance, such as {}", first.name);
    }
    let n_filled: usize = encoded().map(|tensor| tensor.n_filled).sum();
    if n_filled > 0 {
        warn!("{n_filled} of the matrices have no data of their own, and use the importance of similar ones");
    }
}

/// Returns metadata about the importance matrix, with the keys of llama.cpp.
fn origin(path: &Path, matrix: &ImportanceMatrix) -> Vec<(String, Value)> {
    let key = |name: &str| format!("quantize.imatrix.{name}");
    let mut pairs = vec![
        (key("file"), Value::from(path.display().to_string().as_str())),
        (key("entries_count"), Value::from(matrix.entries.len() as u32)),
        (key("chunks_count"), Value::from(matrix.n_chunks)),
    ];
    if let Some(dataset) = matrix.datasets.first() {
        pairs.push((key("dataset"), Value::from(dataset.as_str())));
    }
    pairs
}

/// Refuses to write over the source.
fn check_names(args: &QuantizeArgs, source: &GgufSet) -> Outcome {
    let output = args.output.canonicalize().ok();
    let is_output = |path: &Path| output.is_some() && path.canonicalize().ok() == output;
    if source.shards().iter().any(|shard| is_output(shard.path())) {
        return Err(Failure::new(format_args!(
            "{} is the source; choose another name for the output",
            args.output.display()
        )));
    }
    Ok(())
}

/// Writes the output.
fn write(
    path: &Path,
    source: &GgufSet,
    plan: &QuantizePlan,
    overrides: &[(String, Value)],
    of_input: &dyn Fn(QuantizeError) -> Failure,
) -> Outcome {
    let mut output = OutputFile::create(path)?;
    let guard = interrupt::listen();
    let total: usize = plan.tensors.iter().map(PlannedTensor::n_elements).sum();
    let bar = progress::bar("quantizing", total);
    let mut out = BufWriter::with_capacity(1 << 20, output.file());
    let result = quantize::write(source, plan, overrides, &mut out, &|done| {
        bar.set(done);
        !guard.is_set()
    });
    result.map_err(|error| match error {
        QuantizeError::Gguf(error) => Failure::new(format_args!("{}: {error}", path.display())),
        error => of_input(error),
    })?;
    out.flush().map_err(|e| failed(path, &e))?;
    drop(out);
    output.finish(None)
}

/// Gives an overriding number the type that the key has in the source, or the usual one.
fn typed(source: &GgufSet, (key, value): &(String, Value)) -> (String, Value) {
    let old = source.metadata().get(key);
    let value = match (value, old) {
        (Value::I64(v), Some(Value::I32(_))) => i32::try_from(*v).map_or_else(|_| value.clone(), Value::from),
        (Value::I64(v), Some(Value::U64(_))) => u64::try_from(*v).map_or_else(|_| value.clone(), Value::from),
        (Value::I64(_), Some(Value::I64(_))) => value.clone(),
        (Value::I64(v), _) => u32::try_from(*v).map_or_else(|_| value.clone(), Value::from),
        (Value::F64(v), old) if !matches!(old, Some(Value::F64(_))) => Value::from(*v as f32),
        _ => value.clone(),
    };
    (key.clone(), value)
}

fn print(args: &QuantizeArgs, plan: &QuantizePlan) -> Outcome {
    let mut out = stdout();
    if args.json {
        let tensors: Vec<_> = plan.tensors.iter().map(tensor_json).collect();
        let report = json!({
            "file": args.output.display().to_string(),
            "type": plan.mixture.to_string(),
            "tensor_bytes": plan.bytes(),
            "bits_per_weight": plan.bits_per_weight(),
            "tensors": tensors,
        });
        serde_json::to_writer_pretty(&mut out, &report)?;
        writeln!(out)?;
        return Ok(out.flush()?);
    }
    if args.dry_run {
        for tensor in &plan.tensors {
            let shape = format::shape(&tensor.shape);
            let bytes = format::bytes(tensor.bytes);
            let (name, from, to) = (&tensor.name, tensor.from.to_string(), tensor.to.to_string());
            let note = tensor
                .wanted
                .map_or(String::new(), |wanted| format!("  (not whole blocks of {wanted})"));
            writeln!(out, "{name:<40} {shape:<18} {from:>6} -> {to:<7} {bytes:>10}{note}")?;
        }
    }
    writeln!(
        out,
        "{}: {}, {}, {:.2} bits per weight",
        args.output.display(),
        format::plural(plan.tensors.len(), "tensor"),
        format::bytes(plan.bytes()),
        plan.bits_per_weight()
    )?;
    Ok(out.flush()?)
}

fn tensor_json(tensor: &PlannedTensor) -> serde_json::Value {
    json!({
        "name": tensor.name,
        "shape": tensor.shape,
        "from": tensor.from.name(),
        "to": tensor.to.name(),
        "wanted": tensor.wanted.map(GgmlType::name),
        "bytes": tensor.bytes,
    })
}

fn mixture(text: &str) -> Result<Mixture, String> {
    Mixture::find(text).ok_or_else(|| {
        let names: Vec<_> = Mixture::names().collect();
        format!("expected one of {}", names.join(", "))
    })
}

fn encodable(text: &str) -> Result<GgmlType, String> {
    let ty = GgmlType::from_name(text).filter(|&ty| kernels::can_encode(ty));
    ty.ok_or_else(|| {
        let types = GgmlType::ALL.iter().filter(|&&ty| kernels::can_encode(ty));
        let names: Vec<_> = types.map(|ty| ty.name()).collect();
        format!("expected one of {}", names.join(", "))
    })
}

fn rule(text: &str) -> Result<(Regex, GgmlType), String> {
    let (pattern, ty) = text.rsplit_once('=').ok_or("expected REGEX=TYPE")?;
    let pattern = Regex::new(pattern).map_err(|e| format!("invalid regular expression {pattern:?}: {e}"))?;
    Ok((pattern, encodable(ty)?))
}
