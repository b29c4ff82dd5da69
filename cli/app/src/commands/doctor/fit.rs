//! Predicts whether a model fits, its approximate speed, and changes that make the model fit.

use std::io::Write;
use std::path::Path;

use engine::gguf::Gguf;
use engine::model::LoadPlan;
use serde::Serialize;

use super::machine::Machine;
use crate::args::PlanArgs;
use crate::commands::bench::work::Weights;
use crate::commands::plan::{self, MemoryBudget, PlanSet};
use crate::commands::projector::{ProjectorPlan, ProjectorSummary};
use crate::failure::Outcome;
use crate::format;

/// Prediction for a model on this machine.
#[derive(Serialize)]
pub struct Fit {
    file: String,
    architecture: &'static str,
    /// Layers on GPUs, and the total number of layers.
    device_layers: usize,
    layers: usize,
    /// Context size in tokens.
    context: usize,
    kv_bytes: usize,
    /// Size of intermediate results in bytes.
    compute_bytes: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    projector: Option<ProjectorSummary>,
    memory: Vec<MemoryBudget>,
    fits: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    estimate: Option<Estimate>,
    /// Suggested changes.
    #[serde(skip)]
    pub advice: Vec<String>,
}

/// Speed limit from the measured memory bandwidth. Actual speed is lower for small models or if other processes use the
/// memory, and higher if the weights fit in a cache.
#[derive(Serialize)]
struct Estimate {
    bytes_per_token: f64,
    /// Decode speed with an empty context.
    tokens_per_s: f64,
    /// Decode speed with a full context.
    tokens_per_s_full: f64,
}

impl Fit {
    /// Plans the placement of a model, whose tensor data may be missing.
    pub fn new(file: &Path, header: &Gguf, args: &PlanArgs, machine: &Machine) -> Outcome<Fit> {
        let params = args.params()?;
        let plan = plan::plan(file, header, &params)?;
        let projector = ProjectorPlan::of(args, &plan, file, &params)?;
        let plans = PlanSet {
            model: &plan,
            projector: projector.as_ref(),
        };
        let memory = plans.budgets(&params.placement.devices);
        let fits = memory.iter().all(MemoryBudget::fits);
        let estimate = Estimate::new(&plan, machine.speed.read_bytes);
        let advice = if fits {
            Vec::new()
        } else {
            vec![plan::change(file, header, args, plans)?]
        };
        Ok(Fit {
            file: file.display().to_string(),
            architecture: plan.arch.name,
            device_layers: plan.summary.n_offloaded,
            layers: plan.summary.n_layers,
            context: plan.n_ctx,
            kv_bytes: total(&plan.kv_bytes),
            compute_bytes: total(&plan.compute_bytes),
            projector: projector.as_ref().map(ProjectorPlan::summary),
            memory,
            fits,
            estimate,
            advice,
        })
    }

    pub fn print(&self, out: &mut dyn Write) -> Outcome {
        writeln!(out, "{}: {}", self.file, self.architecture)?;
        if self.device_layers > 0 {
            writeln!(out, "{}/{} layers on devices", self.device_layers, self.layers)?;
        }
        if self.kv_bytes > 0 {
            let kv = format::mib(self.kv_bytes);
            writeln!(out, "KV cache: {} tokens, {kv}", self.context)?;
        }
        writeln!(out, "compute buffers: {}", format::mib(self.compute_bytes))?;
        if let Some(projector) = &self.projector {
            projector.print(out)?;
        }
        self.memory.iter().try_for_each(|budget| budget.print(out))?;
        let verdict = if self.fits { "fits" } else { "does not fit" };
        match &self.estimate {
            Some(estimate) => writeln!(
                out,
                "{verdict}; at most {:.1} tokens/s, {:.1} tokens/s with a full context ({} read per token)",
                estimate.tokens_per_s,
                estimate.tokens_per_s_full,
                format::mib(estimate.bytes_per_token as usize)
            )?,
            None => writeln!(out, "{verdict}; no speed estimate")?,
        }
        Ok(())
    }
}

impl Estimate {
    /// Estimates the speed. `None` for models that do not generate tokens, and if GPUs have layers, because
    /// their bandwidth was not measured.
    fn new(plan: &LoadPlan, read: f64) -> Option<Estimate> {
        let generates = !plan.arch.bidirectional && plan.base.causal;
        if !generates || plan.summary.n_offloaded > 0 {
            return None;
        }
        let rows = plan.rows.iter().zip(&plan.places);
        let weights = Weights::of(&plan.base, rows.map(|(row, place)| (row, place.bytes)), 1);
        let states: usize = plan.specs.states.iter().map(|s| s.row * size_of::<f32>()).sum();
        let bytes = weights.bytes + states as f64;
        Some(Estimate {
            bytes_per_token: bytes,
            tokens_per_s: read / bytes.max(1.0),
            tokens_per_s_full: read / (bytes + total(&plan.kv_bytes) as f64).max(1.0),
        })
    }
}

fn total(memory: &[(String, usize)]) -> usize {
    memory.iter().fold(0, |sum, (_, bytes)| sum.saturating_add(*bytes))
}
