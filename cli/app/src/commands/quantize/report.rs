//! Prints the properties of a quantized file as text or JSON.

use std::io::Write;

use engine::measure::Summary;
use engine::quantize::{PlannedTensor, QuantizePlan, Recipe};
use kernels::GgmlType;
use serde_json::json;

use super::args::QuantizeArgs;
use crate::commands::{perplexity, stdout};
use crate::failure::Outcome;
use crate::format;

/// Prints the properties of the file. `other` is the plan with the opposite setting of `--role-mixture`.
pub fn print(
    args: &QuantizeArgs,
    plan: &QuantizePlan,
    other: &QuantizePlan,
    recipe: &Recipe,
    measured: Option<&Summary>,
) -> Outcome {
    let mut out = stdout();
    let is_chosen = recipe.costs.iter().any(|costs| !costs.types.is_empty());
    let pairs = || plan.tensors.iter().zip(&other.tensors);
    if args.json {
        let tensors = pairs().map(|(tensor, other)| tensor_json(tensor, other, recipe));
        let report = json!({
            "file": args.output.display().to_string(),
            "type": plan.mixture.to_string(),
            "tensor_bytes": plan.bytes(),
            "bits_per_weight": plan.bits_per_weight(),
            "expected_kld": is_chosen.then(|| recipe.divergence()),
            "measured": measured.map(perplexity::comparison_json),
            "tensors": tensors.collect::<Vec<_>>(),
        });
        serde_json::to_writer_pretty(&mut out, &report)?;
        writeln!(out)?;
        return Ok(out.flush()?);
    }
    if args.dry_run || is_chosen {
        for (tensor, other) in pairs() {
            writeln!(out, "{}{}", line(tensor, recipe), other_note(args, tensor, other))?;
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
    if is_chosen {
        writeln!(out, "expected KL divergence: {:.6}", recipe.divergence())?;
    }
    if let Some(summary) = measured {
        writeln!(out, "{}", measured_line(summary))?;
    }
    Ok(out.flush()?)
}

/// Formats the type and size of a tensor.
fn line(tensor: &PlannedTensor, recipe: &Recipe) -> String {
    let shape = format::shape(&tensor.shape);
    let bytes = format::bytes(tensor.bytes);
    let (name, from, to) = (&tensor.name, tensor.from.to_string(), tensor.to.to_string());
    let note = match (tensor.wanted, divergence(tensor, recipe)) {
        (Some(wanted), _) => format!("  (not whole blocks of {wanted})"),
        (None, Some(divergence)) => format!("  {:5.2} bits, KL {divergence:.6}", bits(tensor)),
        (None, None) => String::new(),
    };
    format!("{name:<40} {shape:<18} {from:>6} -> {to:<7} {bytes:>10}{note}")
}

/// Formats the divergence from the source.
fn measured_line(s: &Summary) -> String {
    format!(
        "KL divergence: mean {:.6} ± {:.6}, median {:.6}, 99.9% {:.6}; same top token {:.2} ± {:.2} %; \
         perplexity {:.4} (source {:.4})",
        s.kld.value,
        s.kld.error,
        s.klds.quantile(0.5),
        s.klds.quantile(0.999),
        100.0 * s.same_top.value,
        100.0 * s.same_top.error,
        s.perplexity.value,
        s.base_perplexity.value
    )
}

/// Formats the type in the other mixture, if it differs.
fn other_note(args: &QuantizeArgs, tensor: &PlannedTensor, other: &PlannedTensor) -> String {
    if tensor.to == other.to {
        return String::new();
    }
    let name = if args.role_mixture { "llama.cpp" } else { "by role" };
    format!("  ({name}: {})", other.to)
}

/// Returns the expected divergence of a tensor whose type was chosen by its costs.
fn divergence(tensor: &PlannedTensor, recipe: &Recipe) -> Option<f64> {
    let costs = recipe.costs.iter().find(|costs| costs.name == tensor.source);
    recipe.divergence_of(costs?)
}

fn bits(tensor: &PlannedTensor) -> f64 {
    tensor.bytes as f64 * 8.0 / tensor.n_elements().max(1) as f64
}

fn tensor_json(tensor: &PlannedTensor, other: &PlannedTensor, recipe: &Recipe) -> serde_json::Value {
    json!({
        "name": tensor.name,
        "shape": tensor.shape,
        "from": tensor.from.name(),
        "to": tensor.to.name(),
        "wanted": tensor.wanted.map(GgmlType::name),
        "to_in_other_mixture": other.to.name(),
        "bytes": tensor.bytes,
        "kld": divergence(tensor, recipe),
    })
}
