//! Printed results, as text and as JSON.

use std::io::Write;

use engine::measure::{
    Corpus, Distribution, Estimate, ModelComparison, Perplexity, Score, Summary, TaskKind, TaskTally,
};
use serde_json::{Value, json};

use super::args::PerplexityArgs;
use crate::commands::stdout;
use crate::failure::Outcome;
use crate::format;

/// Quantiles of the divergence, from the largest one.
const KLD_QUANTILES: [(&str, f64); 11] = [
    ("Maximum", 1.0),
    ("99.9%", 0.999),
    ("99.0%", 0.99),
    ("95.0%", 0.95),
    ("90.0%", 0.9),
    ("Median", 0.5),
    ("10.0%", 0.1),
    ("5.0%", 0.05),
    ("1.0%", 0.01),
    ("0.1%", 0.001),
    ("Minimum", 0.0),
];

/// Prints the perplexity.
pub fn perplexity(args: &PerplexityArgs, corpus: &Corpus, result: &Perplexity) -> Outcome {
    let value = result.value();
    if args.json {
        return print_json(&json!({
            "n_ctx": corpus.n_ctx(),
            "chunks": corpus.n_chunks(),
            "scored_tokens": result.n_tokens(),
            "perplexity": estimate(value),
        }));
    }
    let mut out = stdout();
    let tokens = format::plural(result.n_tokens(), "scored token");
    let chunks = format::plural(corpus.n_chunks(), "chunk");
    writeln!(out, "Perplexity: {:.4} ± {:.5}", value.value, value.error)?;
    writeln!(out, "({tokens}; {chunks} of {})", corpus.n_ctx())?;
    Ok(out.flush()?)
}

/// Prints the comparison with a base model.
pub fn comparison(args: &PerplexityArgs, corpus: &Corpus, result: &ModelComparison) -> Outcome {
    let summary = result.summary();
    if args.json {
        let mut report = comparison_json(&summary);
        report["n_ctx"] = corpus.n_ctx().into();
        report["chunks"] = corpus.n_chunks().into();
        return print_json(&report);
    }
    let mut out = stdout();
    write_comparison(&mut out, &summary)?;
    Ok(out.flush()?)
}

fn write_comparison(out: &mut dyn Write, s: &Summary) -> std::io::Result<()> {
    writeln!(out, "Perplexity")?;
    for (name, value) in [
        ("Model", s.perplexity),
        ("Base", s.base_perplexity),
        ("ln(Model/Base)", s.log_ratio),
        ("Model/Base", s.ratio),
        ("Model-Base", s.difference),
    ] {
        writeln!(out, "  {name:<15} {:11.6} ± {:.6}", value.value, value.error)?;
    }
    writeln!(out, "  {:<15} {:11.2} %", "Correlation", 100.0 * s.correlation)?;
    writeln!(out, "\nKL divergence")?;
    writeln!(out, "  {:<15} {:11.6} ± {:.6}", "Mean", s.kld.value, s.kld.error)?;
    if s.kld_excess > 0.0 {
        writeln!(out, "  {:<15} {:11.6}", "Mean, at most", s.kld.value + s.kld_excess)?;
    }
    for (name, fraction) in KLD_QUANTILES {
        writeln!(out, "  {name:<15} {:11.6}", s.klds.quantile(fraction))?;
    }
    writeln!(out, "\nProbability of the next token")?;
    for (name, value) in [
        ("Mean Δp", s.delta_p),
        ("RMS Δp", s.delta_p_rms),
        ("Same top token", s.same_top),
    ] {
        writeln!(
            out,
            "  {name:<15} {:11.3} ± {:.3} %",
            100.0 * value.value,
            100.0 * value.error
        )?;
    }
    for (name, fraction) in KLD_QUANTILES {
        writeln!(
            out,
            "  {:<15} {:11.3} %",
            format!("{name} Δp"),
            100.0 * s.delta_ps.quantile(fraction)
        )?;
    }
    Ok(())
}

/// Returns the statistics of a comparison.
pub fn comparison_json(s: &Summary) -> Value {
    json!({
        "scored_tokens": s.n_tokens,
        "perplexity": estimate(s.perplexity),
        "base_perplexity": estimate(s.base_perplexity),
        "log_ratio": estimate(s.log_ratio),
        "ratio": estimate(s.ratio),
        "difference": estimate(s.difference),
        "correlation": s.correlation,
        "kld": estimate(s.kld),
        "kld_error_bound": s.kld_excess,
        "kld_quantiles": quantiles(&s.klds),
        "delta_p": estimate(s.delta_p),
        "delta_p_rms": estimate(s.delta_p_rms),
        "delta_p_quantiles": quantiles(&s.delta_ps),
        "same_top": estimate(s.same_top),
    })
}

fn quantiles(distribution: &Distribution) -> Value {
    let all = KLD_QUANTILES
        .iter()
        .map(|(_, f)| (f.to_string(), distribution.quantile(*f).into()));
    Value::Object(all.collect())
}

fn estimate(estimate: Estimate) -> Value {
    json!({ "value": estimate.value, "error": estimate.error })
}

/// Prints the accuracy over all tasks.
pub fn tasks(args: &PerplexityArgs, kind: TaskKind, tally: &TaskTally, scores: &[Score]) -> Outcome {
    let accuracy = tally.accuracy();
    let (low, high) = tally.interval();
    let name = match kind {
        TaskKind::HellaSwag => "HellaSwag",
        TaskKind::WinoGrande => "WinoGrande",
        TaskKind::MultipleChoice => "Multiple choice",
    };
    if args.json {
        let scores = scores
            .iter()
            .map(|score| json!({ "answers": score.answers, "choice": score.choice, "right": score.is_right }));
        return print_json(&json!({
            "tasks": tally.n_tasks,
            "right": tally.n_right,
            "accuracy": estimate(accuracy),
            "interval_95": [low, high],
            "chance": tally.chance(),
            "scores": scores.collect::<Vec<_>>(),
        }));
    }
    let mut out = stdout();
    let percent = |x: f64| 100.0 * x;
    writeln!(
        out,
        "{name}: {:.4} ± {:.4} % of {} (95 %: {:.4} to {:.4}; chance: {:.2} %)",
        percent(accuracy.value),
        percent(accuracy.error),
        format::plural(tally.n_tasks, "task"),
        percent(low),
        percent(high),
        percent(tally.chance())
    )?;
    Ok(out.flush()?)
}

fn print_json(value: &Value) -> Outcome {
    let mut out = stdout();
    serde_json::to_writer_pretty(&mut out, value)?;
    writeln!(out)?;
    Ok(out.flush()?)
}
