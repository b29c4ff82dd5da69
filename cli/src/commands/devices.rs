//! `llama devices`: what computes on this machine, as `--device` names it, and why something does not.

use std::io::Write;

use clap::Args;
use engine::backend::{self, Device, DeviceKind};
use serde::Serialize;

use crate::commands::stdout;
use crate::failure::Outcome;
use crate::human;

/// `llama devices`
#[derive(Debug, Args)]
#[command(args_override_self = true)]
pub struct DevicesArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// All that is printed; the JSON is exactly this.
#[derive(Serialize)]
pub struct Report {
    devices: Vec<Row>,
    /// Why there are no devices of a family, or fewer than there are cards.
    flaws: Vec<String>,
}

#[derive(Serialize)]
struct Row {
    name: String,
    kind: &'static str,
    description: String,
    /// Bytes, 0 where they cannot be found out.
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

impl Report {
    /// What is there now.
    pub fn look() -> Report {
        let flaws = backend::registries().iter().flat_map(|registry| {
            let name = registry.name().to_owned();
            registry.flaws().into_iter().map(move |flaw| format!("{name}: {flaw}"))
        });
        Report {
            devices: backend::devices().iter().map(|device| Row::new(&**device)).collect(),
            flaws: flaws.collect(),
        }
    }

    /// A line for each device, and for each that is not usable.
    pub fn print(&self, out: &mut dyn Write) -> std::io::Result<()> {
        let width = self.devices.iter().map(|row| row.name.len()).max().unwrap_or(0);
        for row in &self.devices {
            let (free, total) = (human::bytes(row.free_bytes), human::bytes(row.total_bytes));
            writeln!(out, "{:width$}  {}, {free} of {total} free", row.name, row.description)?;
        }
        for flaw in &self.flaws {
            writeln!(out, "not usable: {flaw}")?;
        }
        Ok(())
    }
}

/// Lists the devices.
pub fn run(args: &DevicesArgs) -> Outcome {
    let report = Report::look();
    let mut out = stdout();
    if args.json {
        serde_json::to_writer_pretty(&mut out, &report)?;
        writeln!(out)?;
    } else {
        report.print(&mut out)?;
    }
    Ok(out.flush()?)
}
