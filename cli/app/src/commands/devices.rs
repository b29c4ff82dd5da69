//! `llama devices`: lists devices by their `--device` name, and why others are unavailable.

use std::io::Write;

use clap::Args;
use engine::backend::{self, Device, DeviceKind};
use serde::Serialize;

use crate::commands::stdout;
use crate::failure::Outcome;
use crate::format;

/// Arguments of `llama devices`.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
pub struct DevicesArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Report, printed as text or JSON.
#[derive(Serialize)]
pub struct DeviceReport {
    devices: Vec<Row>,
    /// Reasons why devices of a family are missing.
    #[serde(rename = "flaws")]
    problems: Vec<String>,
}

#[derive(Serialize)]
struct Row {
    name: String,
    kind: &'static str,
    description: String,
    /// Free memory in bytes; 0 if unknown.
    free_bytes: usize,
    total_bytes: usize,
}

impl Row {
    fn new(device: &dyn Device) -> Row {
        let (free_bytes, total_bytes) = device.memory();
        Row {
            name: device.name().to_owned(),
            kind: match device.kind() {
                DeviceKind::Cpu => "cpu",
                DeviceKind::Gpu => "gpu",
                DeviceKind::Accel => "accel",
            },
            description: device.description(),
            free_bytes,
            total_bytes,
        }
    }
}

impl DeviceReport {
    /// Queries all available devices.
    pub fn look() -> DeviceReport {
        let problems = backend::registries().iter().flat_map(|registry| {
            let name = registry.name().to_owned();
            registry
                .problems()
                .into_iter()
                .map(move |problem| format!("{name}: {problem}"))
        });
        DeviceReport {
            devices: backend::devices().iter().map(|device| Row::new(&**device)).collect(),
            problems: problems.collect(),
        }
    }

    /// Prints one line per device and per unavailable device.
    pub fn print(&self, out: &mut dyn Write) -> std::io::Result<()> {
        let width = self.devices.iter().map(|row| row.name.len()).max().unwrap_or(0);
        for row in &self.devices {
            let (free, total) = (format::bytes(row.free_bytes), format::bytes(row.total_bytes));
            writeln!(out, "{:width$}  {}, {free} of {total} free", row.name, row.description)?;
        }
        for problem in &self.problems {
            writeln!(out, "unavailable: {problem}")?;
        }
        Ok(())
    }
}

pub fn run(args: &DevicesArgs) -> Outcome {
    let report = DeviceReport::look();
    let mut out = stdout();
    if args.json {
        serde_json::to_writer_pretty(&mut out, &report)?;
        writeln!(out)?;
    } else {
        report.print(&mut out)?;
    }
    Ok(out.flush()?)
}
