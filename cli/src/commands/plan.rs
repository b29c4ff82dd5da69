//! `llama inspect --plan`: what would go where if a file were loaded, for people or as JSON.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use engine::backend::{self, Device};
use engine::build::MemoryParams;
use engine::gguf::split::SplitInfo;
use engine::gguf::{Gguf, GgufSet};
use engine::model::{self, Plan};
use serde::Serialize;

use crate::args::InspectArgs;
use crate::commands::stdout;
use crate::failure::Outcome;
use crate::human;

/// Prints the plan for a file, whose tensors' data may be missing, or for all parts of a model.
pub fn run(args: &InspectArgs, file: &Path, header: &Gguf) -> Outcome {
    let defaults = MemoryParams::default();
    let memory = MemoryParams {
        n_ctx: args.ctx_size.unwrap_or(defaults.n_ctx),
        n_seq_max: args.n_parallel,
        type_k: args.cache_type_k,
        type_v: args.cache_type_v,
        ..defaults
    };
    let params = args.placement.params(Some(memory))?;
    let split = SplitInfo::from_metadata(&header.metadata).map_err(|e| e.in_file(file))?;
    let plan = match split {
        None => model::plan(header, file, archs::ALL, &params)?,
        Some(_) => model::plan_set(&GgufSet::open(file)?, archs::ALL, &params)?,
    };
    let report = Report::new(&plan, args.plan_tensors);
    let mut out = stdout();
    if args.json {
        serde_json::to_writer_pretty(&mut out, &report)?;
        writeln!(out)?;
    } else {
        print(&mut out, &report)?;
        print_room(&mut out, &report, &params.placement.devices)?;
    }
    Ok(out.flush()?)
}

/// All that is printed; the JSON is exactly this.
#[derive(Serialize)]
struct Report<'a> {
    /// Layers on devices beside the CPU, the output being one.
    device_layers: usize,
    /// Layers in all, the output being one.
    layers: usize,
    memory: Vec<Memory<'a>>,
    /// Tokens of the context.
    context: usize,
    /// Its keys and values.
    kv: Vec<Memory<'a>>,
    /// Its recurrent states.
    states: Vec<Memory<'a>>,
    /// Bytes of the states of all recurrent layers, once; a context keeps two of them for each sequence.
    #[serde(skip_serializing_if = "Option::is_none")]
    state_bytes: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tensors: Option<Vec<Tensor<'a>>>,
}

#[derive(Serialize)]
struct Memory<'a> {
    name: &'a str,
    bytes: usize,
}

#[derive(Serialize)]
struct Tensor<'a> {
    name: &'a str,
    memory: &'a str,
    #[serde(rename = "type")]
    ty: &'static str,
    /// How its rows are arranged there.
    layout: &'a str,
    bytes: usize,
}

impl<'a> Report<'a> {
    fn new(plan: &'a Plan, with_tensors: bool) -> Report<'a> {
        let memory = |(name, bytes): &'a (String, usize)| Memory { name, bytes: *bytes };
        let tensors = plan.rows.iter().zip(&plan.places).map(|(row, place)| Tensor {
            name: &row.name,
            memory: &place.memory,
            ty: row.stored_type().name(),
            layout: &place.layout,
            bytes: place.bytes,
        });
        let states = plan.specs.states.iter().map(|s| s.row * size_of::<f32>());
        Report {
            device_layers: plan.summary.n_offloaded,
            layers: plan.summary.n_layers,
            memory: plan.summary.bytes.iter().map(memory).collect(),
            context: plan.n_ctx,
            kv: plan.kv_bytes.iter().map(memory).collect(),
            states: plan.state_bytes.iter().map(memory).collect(),
            state_bytes: (!plan.specs.states.is_empty()).then(|| states.sum()),
            tensors: with_tensors.then(|| tensors.collect()),
        }
    }
}

/// Says what each memory would have to hold beside what is free of it, and where not all layers went to devices that could have them, why.
fn print_room(out: &mut dyn Write, report: &Report<'_>, devices: &[Arc<dyn Device>]) -> Outcome {
    let cpu = backend::default_device();
    for device in devices.iter().chain([&cpu]) {
        let ty = device.buffer_type();
        let its = |m: &&Memory<'_>| m.name == ty.name();
        let needed = total(report.memory.iter().chain(&report.kv).chain(&report.states).filter(its));
        let (free, all) = device.memory();
        if all > 0 {
            let fits = if needed > free { ": too much" } else { "" };
            writeln!(
                out,
                "{} takes {} of {} that are free{fits}",
                ty.name(),
                human::mib(needed),
                human::bytes(free)
            )?;
        }
    }
    if report.device_layers < report.layers && !devices.is_empty() {
        let bytes = total(report.memory.iter().chain(&report.kv).chain(&report.states));
        writeln!(
            out,
            "a layer takes {} on average, with what it keeps; fewer layers (-ngl), a smaller context (-c) or cache (-ctk q8_0 -ctv q8_0) take less",
            human::mib(bytes / report.layers.max(1))
        )?;
    }
    Ok(())
}

fn total<'a>(memory: impl Iterator<Item = &'a Memory<'a>>) -> usize {
    memory.fold(0, |sum, m| sum.saturating_add(m.bytes))
}

fn print(out: &mut dyn Write, report: &Report<'_>) -> Outcome {
    writeln!(out, "{}/{} layers on devices", report.device_layers, report.layers)?;
    let width = report.memory.iter().map(|m| m.name.len()).max().unwrap_or(0);
    let list = |out: &mut dyn Write, memory: &[Memory<'_>]| -> Outcome {
        for m in memory {
            writeln!(out, "{:<width$}  {:>13}", m.name, human::mib(m.bytes))?;
        }
        Ok(())
    };
    list(out, &report.memory)?;
    if !report.kv.is_empty() {
        writeln!(out, "keys and values of {} tokens", report.context)?;
        list(out, &report.kv)?;
    }
    if !report.states.is_empty() {
        writeln!(out, "recurrent states")?;
        list(out, &report.states)?;
    }
    if let Some(bytes) = report.state_bytes {
        writeln!(
            out,
            "a recurrent state, of which each sequence has two: {}",
            human::mib(bytes)
        )?;
    }
    let Some(tensors) = &report.tensors else { return Ok(()) };
    let name_width = tensors.iter().map(|t| t.name.chars().count()).max().unwrap_or(0);
    let layout_width = tensors.iter().map(|t| t.layout.len()).max().unwrap_or(0);
    writeln!(out)?;
    for t in tensors {
        // Names are those that the architecture declares.
        writeln!(
            out,
            "{:<name_width$}  {:<width$}  {:<6} {:<layout_width$} {:>13}",
            t.name,
            t.memory,
            t.ty,
            t.layout,
            human::mib(t.bytes)
        )?;
    }
    Ok(())
}
