//! `llama quantize`: writes a model file with weights in smaller types.

mod args;
mod budget;
mod report;
mod write;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use engine::gguf::{GgufSet, Value};
use engine::importance::ImportanceMatrix;
use engine::quantize::{
    CalibratedRounding, Mixture, Options, PrunedLayers, QuantizeError, QuantizePlan, QuantizedFile, candidate_types,
};
use kernels::GgmlType;
use sha2::{Digest, Sha256};
use tracing::warn;

pub use args::QuantizeArgs;

use crate::commands::gguf::hexadecimal;
use crate::commands::{imatrix, perplexity};
use crate::failure::{Failure, Outcome};
use crate::loading::start_workers;
use crate::{checkpoints, format, input, output};

/// Tokens per chunk of the text of --calibrate.
const N_CTX: usize = 512;

/// Writes the file and prints its properties.
pub fn run(args: &QuantizeArgs) -> Outcome {
    start_workers(args.n_threads())?;
    let source = checkpoints::open(&args.input, &args.arch)?;
    if !args.dry_run {
        output::check(&write::first_path(args, &source))?;
    }
    if let Some(path) = &args.budget.save_recipe {
        output::check(path)?;
    }
    let importance = args.imatrix.as_deref().map(imatrix::open).transpose()?.map(Arc::new);
    let mut options = options(args, importance.clone())?;
    let of_input = |error: QuantizeError| match error {
        QuantizeError::Stopped => Failure::Interrupted,
        QuantizeError::Gguf(error) => error.into(),
        error => Failure::new(format_args!("{}: {error}", args.input.display())),
    };
    let mut overrides: Vec<_> = args.override_kv.iter().map(|pair| typed(&source, pair)).collect();
    overrides.extend(
        args.imatrix
            .iter()
            .zip(&importance)
            .flat_map(|(path, matrix)| origin(path, matrix)),
    );
    let text = args.calibrate.as_deref().map(input::read).transpose()?;
    if let Some(text) = &text {
        let digest = hexadecimal(&Sha256::digest(text));
        let key = |name: &str| format!("quantize.calibration.{name}");
        overrides.push((key("text_sha256"), Value::from(digest.as_str())));
        overrides.push((key("chunks"), Value::from(args.calibrate_chunks as u64)));
    }
    let recipe = budget::recipe(args, &source, &options, &overrides, &of_input)?;
    if let Some(most_used) = recipe.most_used() {
        options.mixture = Mixture::of_type(most_used).unwrap_or(options.mixture);
        options.types.clone_from(&recipe.types);
        overrides.extend(recipe.metadata());
    }
    let plan = QuantizePlan::new(&source, &options).map_err(of_input)?;
    for (pattern, _) in &args.tensor_type {
        if !plan.tensors.iter().any(|tensor| pattern.is_match(&tensor.source)) {
            warn!("--tensor-type {}: no tensor has a matching name", pattern.as_str());
        }
    }
    if !args.json && !args.dry_run {
        warn_of_rows(&plan);
    }
    if !args.dry_run {
        warn_of_importance(&plan, args.calibrate.is_some());
        let calibration = text.as_deref().map(|text| budget::calibration(args, text, N_CTX));
        let calibration = calibration.transpose()?;
        let rounding = calibration
            .as_ref()
            .map(|text| CalibratedRounding::new(&source, &plan, text));
        let rounding = rounding.transpose().map_err(of_input)?;
        let whole = QuantizedFile::new(&source, &plan, &overrides).rounded_by(rounding.as_ref());
        write::write(args, &source, &plan, &whole, &of_input)?;
    }
    let other = other_mixture(&source, &options, &plan);
    let measured = args
        .measure
        .as_deref()
        .map(|text| {
            let path = write::first_path(args, &source);
            perplexity::compared(&path, &args.input, text, &args.arch, args.n_threads())
        })
        .transpose()?;
    report::print(args, &plan, &other, &recipe, measured.as_ref())
}

/// Returns the choices of the arguments.
fn options(args: &QuantizeArgs, importance: Option<Arc<ImportanceMatrix>>) -> Outcome<Options> {
    // The types of a recipe replace those of the mixture.
    let mixture = args.mixture.or(Mixture::of_type(GgmlType::Q4_K));
    Ok(Options {
        mixture: mixture.ok_or_else(|| Failure::new("no TYPE given"))?,
        by_role: args.role_mixture,
        pure: args.pure,
        keep_output: args.leave_output_tensor,
        output: args.output_tensor_type,
        embedding: args.token_embedding_type,
        rules: args.tensor_type.clone(),
        types: BTreeMap::new(),
        pruned: PrunedLayers::new(args.prune_layers.iter().copied()),
        allow_requantize: args.allow_requantize,
        importance,
    })
}

/// Returns the plan with the types by role, or with the types of llama.cpp if `options` choose by role.
fn other_mixture(source: &GgufSet, options: &Options, plan: &QuantizePlan) -> QuantizePlan {
    let options = Options {
        by_role: !options.by_role,
        ..options.clone()
    };
    // A quantized source may be valid for only one of the two mixtures.
    QuantizePlan::new(source, &options).unwrap_or_else(|_| plan.clone())
}

/// Warns about tensors whose rows are not whole blocks of the chosen type, once for each length of rows and type.
fn warn_of_rows(plan: &QuantizePlan) {
    let mut groups = BTreeMap::<_, Vec<&str>>::new();
    for tensor in &plan.tensors {
        if let Some(wanted) = tensor.wanted {
            let group = groups.entry((tensor.shape[0], wanted, tensor.to));
            group.or_default().push(&tensor.name);
        }
    }
    for ((n, wanted, to), names) in groups {
        let (tensors, first) = (format::plural(names.len(), "tensor"), names[0]);
        warn!(
            "{tensors} with rows of {n} elements, such as {first}: the type is {to}, because the rows are not whole blocks of {wanted}"
        );
    }
}

/// Warns about matrices without data in the importance matrix. Without a matrix and calibration, warns about types that
/// need one of them.
fn warn_of_importance(plan: &QuantizePlan, is_calibrated: bool) {
    let encoded = || plan.tensors.iter().filter(|tensor| tensor.is_encoded());
    if plan.importance.is_none() {
        let (weighted, plain) = (candidate_types(true), candidate_types(false));
        let needs_importance = |ty| weighted.contains(&ty) && !plain.contains(&ty);
        let tensors: Vec<_> = encoded().filter(|tensor| needs_importance(tensor.to)).collect();
        if let Some(first) = tensors.first()
            && !is_calibrated
        {
            let (n, ty) = (format::plural(tensors.len(), "tensor"), first.to);
            warn!("{n} have large errors as {ty} without an importance matrix; pass --imatrix (see `llama imatrix`)");
        }
        return;
    }
    let missing: Vec<_> = encoded().filter(|tensor| tensor.weighted_by.is_none()).collect();
    if let Some(first) = missing.first() {
        let tensors = format::plural(missing.len(), "tensor");
        warn!("the importance matrix lacks {tensors}, such as {}", first.name);
    }
    let n_filled: usize = encoded().map(|tensor| tensor.n_filled).sum();
    if n_filled > 0 {
        warn!("{n_filled} of the matrices have no data, and use the importance of similar matrices");
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

/// Converts an overriding number to the type of the key in the source; by default to u32 or f32.
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
