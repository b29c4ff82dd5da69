//! `llama doctor`: reports capabilities and limits of the machine and predicts how a model would run.
//!
//! - [`machine`]: instruction sets, CPUs, memory, speed, devices
//! - [`fit`]: memory plan and speed estimate of a model

mod fit;
mod machine;

use std::io::Write;

use clap::Args;
use serde::Serialize;

use crate::args::PlanArgs;
use crate::checkpoints;
use crate::commands::stdout;
use crate::failure::Outcome;
use fit::Fit;
use machine::Machine;

/// Arguments of `llama doctor`.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
pub struct DoctorArgs {
    /// GGUF file (tensor data may be missing) or model name [default: machine only]
    #[arg(value_name = "MODEL")]
    pub file: Option<std::path::PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub planned: PlanArgs,
}

/// Report, printed as text or JSON.
#[derive(Serialize)]
struct Report {
    machine: Machine,
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<Fit>,
    /// Suggested changes.
    advice: Vec<String>,
}

/// Reports on the machine, measured for about half a second, and on a model.
pub fn run(args: &DoctorArgs) -> Outcome {
    let file = args.planned.hub.file(args.file.as_deref())?;
    // Report file errors before measuring.
    let header = match file.as_deref() {
        Some(file) => Some(checkpoints::header(file, &args.planned.placement.arch)?),
        None => None,
    };
    let machine = Machine::look();
    let model = match file.as_deref().zip(header.as_ref()) {
        Some((file, header)) => Some(Fit::new(file, header, &args.planned, &machine)?),
        None => None,
    };
    let mut advice = machine.advice();
    advice.extend(model.iter().flat_map(|fit| fit.advice.clone()));
    let report = Report { machine, model, advice };
    let mut out = stdout();
    if args.json {
        serde_json::to_writer_pretty(&mut out, &report)?;
        writeln!(out)?;
    } else {
        print(&mut out, &report)?;
    }
    Ok(out.flush()?)
}

fn print(out: &mut dyn Write, report: &Report) -> Outcome {
    report.machine.print(out)?;
    if let Some(fit) = &report.model {
        writeln!(out)?;
        fit.print(out)?;
    }
    if !report.advice.is_empty() {
        writeln!(out)?;
    }
    for advice in &report.advice {
        writeln!(out, "hint: {advice}")?;
    }
    Ok(())
}
