//! Whether a model fits, about how fast it is, and what would make it fit.

use std::io::Write;
use std::path::Path;

use engine::gguf::Gguf;
use engine::model::Plan;
use serde::Serialize;

use super::machine::Machine;
use crate::args::PlanArgs;
use crate::commands::bench::work::Weights;
use crate::commands::plan::{self, Room};
use crate::failure::Outcome;
use crate::human;

/// A model on this machine.
#[derive(Serialize)]
pub struct Fit {
    file: String,
    architecture: &'static str,
    /// Layers on devices beside the CPU, and in all.
    device_layers: usize,
    layers: usize,
    /// Tokens of the context.
    context: usize,
    kv_bytes: usize,
    /// Of intermediate results.
    compute_bytes: usize,
    memory: Vec<Room>,
    fits: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    estimate: Option<Estimate>,
    /// What to change, in sentences.
    #[serde(skip)]
    pub advice: Vec<String>,
}

/// What memory allows: bytes that a token reads, and how many were read in a second just now. Other work on the machine makes less of it, and weights
/// that fit in a cache are read faster.
#[derive(Serialize)]
struct Estimate {
    bytes_per_token: f64,
    /// Tokens of decode in a second while the context is empty.
    tokens_per_s: f64,
    /// The same when it is full.
    tokens_per_s_full: f64,
}

impl Fit {
    /// Plans for the model, whose tensors' data may be missing.
    pub fn new(file: &Path, header: &Gguf, args: &PlanArgs, machine: &Machine) -> Outcome<Fit> {
        let params = args.params()?;
        let plan = plan::plan(file, header, &params)?;
        let memory = plan::rooms(&plan, &params.placement.devices);
        let fits = memory.iter().all(Room::fits);
        let estimate = Estimate::new(&plan, machine.speed.read_bytes);
        let advice = match fits {
            true => Vec::new(),
            false => vec![plan::change(file, header, args, &plan)?],
        };
        Ok(Fit {
            file: file.display().to_string(),
            architecture: plan.arch.name,
            device_layers: plan.summary.n_offloaded,
            layers: plan.summary.n_layers,
            context: plan.n_ctx,
            kv_bytes: total(&plan.kv_bytes),
            compute_bytes: total(&plan.compute_bytes),
            memory,
            fits,
            estimate,
            advice,
        })
    }

    /// Lines of it.
    pub fn print(&self, out: &mut dyn Write) -> Outcome {
        writeln!(out, "{}: {}", self.file, self.architecture)?;
        if self.device_layers > 0 {
            writeln!(out, "{}/{} layers on devices", self.device_layers, self.layers)?;
        }
        if self.kv_bytes > 0 {
            let kv = human::mib(self.kv_bytes);
            writeln!(out, "keys and values of {} tokens take {kv}", self.context)?;
        }
        writeln!(out, "compute buffers take {}", human::mib(self.compute_bytes))?;
        self.memory.iter().try_for_each(|room| room.print(out))?;
        let verdict = if self.fits { "it fits" } else { "it does not fit" };
        match &self.estimate {
            Some(estimate) => writeln!(
                out,
                "{verdict}; estimate: about {:.1} tokens a second, {:.1} when the context is full, as a token reads {}",
                estimate.tokens_per_s,
                estimate.tokens_per_s_full,
                human::mib(estimate.bytes_per_token as usize)
            )?,
            None => writeln!(out, "{verdict}; there is no estimate of its speed")?,
        }
        Ok(())
    }
}

impl Estimate {
    /// `None` for what generates no tokens, and where devices hold layers: their memory was not measured.
    fn new(plan: &Plan, read: f64) -> Option<Estimate> {
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
