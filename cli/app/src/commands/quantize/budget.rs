//! Choice of types within a budget, and recipe files.

use std::path::Path;

use engine::gguf::{FileKind, GgufSet, Value};
use engine::quantize::{
    Calibration, MatrixCosts, Options, QuantizeError, QuantizePlan, QuantizedFile, Recipe, RecipeOrigin,
    candidate_types, measure_errors, measure_sensitivities,
};
use sha2::{Digest, Sha256};

use super::args::{BudgetArgs, QuantizeArgs};
use super::write;
use crate::commands::gguf::{hexadecimal, model_sha256};
use crate::failure::{Failure, Outcome};
use crate::loading::arch_params;
use crate::output::{OutputFile, failed};
use crate::{input, interrupt, progress};

/// Tokens per chunk of the calibration text.
const N_CTX: usize = 128;

/// Tokens that are decoded at once.
const N_BATCH: usize = 512;

/// Maximum number of weights of a model whose layers are all measured by default.
const SMALL: usize = 2_000_000_000;

/// Default number of measured layers of a larger model.
const FEW_LAYERS: usize = 3;

/// Returns the types that a target or a recipe determines; an empty recipe without either.
pub fn recipe(
    args: &QuantizeArgs,
    source: &GgufSet,
    options: &Options,
    overrides: &[(String, Value)],
    of_input: &dyn Fn(QuantizeError) -> Failure,
) -> Outcome<Recipe> {
    let budget = &args.budget;
    if budget.recipe.is_none() && !budget.has_target() {
        return Ok(Recipe::default());
    }
    // Only the types of fixed tensors matter in this plan.
    let plan = QuantizePlan::new(source, options).map_err(of_input)?;
    let recipe = match &budget.recipe {
        Some(path) => open(path, &plan)?,
        None => measured(args, source, &plan, of_input)?,
    };
    if !budget.has_target() {
        save(budget, &recipe)?;
        return Ok(recipe);
    }
    let target = match (budget.target_size, budget.target_bpw) {
        (Some(size), _) => {
            let mut overrides = overrides.to_vec();
            overrides.extend(recipe.metadata());
            let parts = write::n_parts(args, source);
            size.saturating_sub(overhead(source, &plan, &overrides, parts).map_err(of_input)?)
        }
        (None, bits) => {
            let n_weights: usize = plan.tensors.iter().map(|tensor| tensor.n_elements()).sum();
            (bits.unwrap_or(0.0) * n_weights as f64 / 8.0) as usize
        }
    };
    let recipe = Recipe::choose(recipe.origin, recipe.costs, &plan, target).map_err(of_input)?;
    save(budget, &recipe)?;
    Ok(recipe)
}

/// Returns the maximum size of everything except the tensor data in all files: metadata, tensor tables, and padding.
fn overhead(
    source: &GgufSet,
    plan: &QuantizePlan,
    overrides: &[(String, Value)],
    n_parts: usize,
) -> Result<usize, QuantizeError> {
    let whole = QuantizedFile::new(source, plan, overrides);
    let mut size = plan.tensors.len() * source.first().header().alignment();
    for part in 0..n_parts {
        let file = whole.clone();
        let file = if n_parts > 1 { file.of_part(part) } else { file };
        size += file.layout()?.0.len();
    }
    Ok(size)
}

/// Reads a recipe, or the types of a GGUF file.
fn open(path: &Path, plan: &QuantizePlan) -> Outcome<Recipe> {
    let of_file = |error: QuantizeError| Failure::new(format_args!("{}: {error}", path.display()));
    let bytes = input::bytes(path)?;
    if bytes.starts_with(b"GGUF") {
        let model = GgufSet::open(path)?;
        let kind = FileKind::of(model.metadata(), model.n_tensors());
        if kind != FileKind::Model {
            return Err(Failure::new(format_args!("{}: the file is {kind}", path.display())));
        }
        return Ok(Recipe::of_model(&model));
    }
    let text = String::from_utf8_lossy(&bytes);
    let recipe = Recipe::from_json(&text).map_err(of_file)?;
    recipe.check(plan).map_err(of_file)?;
    Ok(recipe)
}

/// Measures the costs of all matrices.
fn measured(
    args: &QuantizeArgs,
    source: &GgufSet,
    plan: &QuantizePlan,
    of_input: &dyn Fn(QuantizeError) -> Failure,
) -> Outcome<Recipe> {
    let budget = &args.budget;
    let path = budget.file.as_deref();
    let path =
        path.ok_or_else(|| Failure::new("a target needs a text to measure with (-f), or a recipe (--recipe)"))?;
    let text = input::read(path)?;
    let origin = RecipeOrigin {
        source_sha256: model_sha256(source)?,
        imatrix_sha256: match &args.imatrix {
            Some(path) => Some(hexadecimal(&Sha256::digest(input::bytes(path)?))),
            None => None,
        },
        text_sha256: hexadecimal(&Sha256::digest(&text)),
        tokens: 0,
    };
    let types = match &budget.candidate_types[..] {
        [] => candidate_types(plan.importance.is_some()),
        types => types.to_vec(),
    };
    let guard = interrupt::listen();
    let n_free = plan.tensors.iter().filter(|tensor| tensor.is_free).count();
    let mut costs = {
        let bar = progress::timed("measuring errors", n_free);
        let progress = |done| {
            bar.set(done);
            !guard.is_set()
        };
        measure_errors(source, plan, &types, &progress).map_err(of_input)?
    };
    let tokens = sensitivities(args, source, plan, &mut costs, &text, of_input)?;
    Ok(Recipe {
        origin: Some(RecipeOrigin { tokens, ..origin }),
        costs,
        ..Recipe::default()
    })
}

/// Measures the sensitivities of all matrices. Returns the number of scored tokens.
fn sensitivities(
    args: &QuantizeArgs,
    source: &GgufSet,
    plan: &QuantizePlan,
    costs: &mut [MatrixCosts],
    text: &str,
    of_input: &dyn Fn(QuantizeError) -> Failure,
) -> Outcome<usize> {
    let n_weights: usize = plan.tensors.iter().map(|tensor| tensor.n_elements()).sum();
    let n_layers = if n_weights > SMALL { FEW_LAYERS } else { usize::MAX };
    let calibration = Calibration {
        n_chunks: args.budget.chunks,
        n_layers: args.budget.measured_layers.unwrap_or(n_layers),
        ..calibration(args, text, N_CTX)?
    };
    let guard = interrupt::listen();
    let bar = progress::timed("measuring matrices", costs.len());
    let progress = |done, n| {
        bar.set_of(done, n);
        !guard.is_set()
    };
    measure_sensitivities(source, plan, costs, &calibration, &progress).map_err(of_input)
}

/// Returns the parameters for decoding a text in chunks of `n_ctx` tokens.
pub fn calibration<'a>(args: &QuantizeArgs, text: &'a str, n_ctx: usize) -> Outcome<Calibration<'a>> {
    let mut load = arch_params(&args.arch)?;
    // Matmuls with f32 activations are faster with the file's weight layout.
    load.placement.repack = false;
    let defaults = engine::context::ContextParams::default();
    Ok(Calibration {
        archs: archs::ALL,
        load,
        text,
        n_ctx,
        n_chunks: args.calibrate_chunks,
        n_batch: N_BATCH,
        n_threads: args.n_threads().unwrap_or(defaults.n_threads),
        n_layers: usize::MAX,
    })
}

fn save(args: &BudgetArgs, recipe: &Recipe) -> Outcome {
    use std::io::Write;
    let Some(path) = &args.save_recipe else {
        return Ok(());
    };
    let mut output = OutputFile::create(path)?;
    output
        .file()
        .write_all(recipe.to_json().as_bytes())
        .map_err(|e| failed(path, &e))?;
    output.finish(None)
}
