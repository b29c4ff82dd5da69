//! `llama doctor`: what this machine can do and what limits it; of a model, whether it fits and how fast it could be, and what to change.
//!
//! - [`machine`]: instruction sets, CPUs, memory, speeds, devices
//! - [`fit`]: a model's plan beside all that

mod fit;
mod machine;

use std::io::Write;

use clap::Args;
use engine::gguf::Gguf;
use serde::Serialize;

use crate::args::PlanArgs;
use crate::commands::stdout;
use crate::failure::Outcome;
use fit::Fit;
use machine::Machine;

/// `llama doctor`
#[derive(Debug, Args)]
#[command(args_override_self = true)]
pub struct DoctorArgs {
    /// GGUF file, whose tensors' data may be missing, or a model by name; without one, only the machine is looked at
    #[arg(value_name = "MODEL")]
    pub file: Option<std::path::PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// What is planned for
    #[command(flatten)]
    pub planned: PlanArgs,
}

/// All that is printed; the JSON is exactly this.
#[derive(Serialize)]
struct Report {
    machine: Machine,
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<Fit>,
    /// What to change, in sentences.
    advice: Vec<String>,
}

/// Looks at the machine, measures it for about half a second, and at a model.
pub fn run(args: &DoctorArgs) -> Outcome {
    let file = args.planned.hub.file(args.file.as_deref())?;
    // What is wrong with the file is said before anything is measured.
    let header = file.as_deref().map(Gguf::open_header).transpose()?;
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
        writeln!(out, "to change: {advice}")?;
    }
    Ok(())
}
