//! `llama inspect --plan`: prints where a model would be placed, as text or JSON.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use engine::backend::{self, Device};
use engine::gguf::split::SplitInfo;
use engine::gguf::{FileKind, Gguf, GgufSet};
use engine::model::{self, DeviceLayers, LoadParams, LoadPlan, PlacementParams};
use kernels::GgmlType;
use serde::Serialize;

use crate::args::PlanArgs;
use crate::commands::projector::{ProjectorPlan, ProjectorSummary};
use crate::commands::stdout;
use crate::failure::Outcome;
use crate::format;
use crate::loading::check_kind;

/// Output of a plan.
pub struct Output {
    /// Print JSON.
    pub json: bool,
    /// Print the placement of each tensor.
    pub tensors: bool,
}

/// Prints the plan for a file, whose tensor data may be missing, or for all shards of a model.
pub fn run(args: &PlanArgs, output: Output, file: &Path, header: &Gguf) -> Outcome {
    let params = args.params()?;
    let plan = plan(file, header, &params)?;
    let projector = ProjectorPlan::of(args, &plan, file, &params)?;
    let plans = PlanSet {
        model: &plan,
        projector: projector.as_ref(),
    };
    let report = Report::new(&plans, output.tensors);
    let mut out = stdout();
    if output.json {
        serde_json::to_writer_pretty(&mut out, &report)?;
        writeln!(out)?;
    } else {
        print(&mut out, &report)?;
        let devices = &params.placement.devices;
        plans
            .budgets(devices)
            .iter()
            .try_for_each(|budget| budget.print(&mut out))?;
        if let Some(advice) = advice(args, file, header, &params, plans)? {
            writeln!(out, "{advice}")?;
        }
    }
    Ok(out.flush()?)
}

/// Plans the placement of a file or of all shards of a model.
pub fn plan(file: &Path, header: &Gguf, params: &LoadParams) -> Outcome<LoadPlan> {
    let split = SplitInfo::from_metadata(&header.metadata).map_err(|e| e.in_file(file))?;
    Ok(match split {
        None => {
            check_kind(file, header, &[FileKind::Model])?;
            model::plan(header, file, archs::ALL, params)?
        }
        Some(_) => model::plan_set(&GgufSet::open(file)?, archs::ALL, params)?,
    })
}

/// Memory that a plan needs on a device, and the free memory.
#[derive(Serialize)]
pub struct MemoryBudget {
    name: String,
    needed_bytes: usize,
    free_bytes: usize,
}

impl MemoryBudget {
    /// Returns true if the memory is sufficient.
    pub fn fits(&self) -> bool {
        self.needed_bytes <= self.free_bytes
    }

    /// Prints the budget on one line.
    pub fn print(&self, out: &mut dyn Write) -> Outcome {
        let fits = if self.fits() { "" } else { ", insufficient" };
        let (needed, free) = (format::mib(self.needed_bytes), format::bytes(self.free_bytes));
        Ok(writeln!(out, "{}: {needed} needed, {free} free{fits}", self.name)?)
    }
}

/// Plans of a model and of its projector.
#[derive(Clone, Copy)]
pub struct PlanSet<'a> {
    pub model: &'a LoadPlan,
    pub projector: Option<&'a ProjectorPlan>,
}

impl PlanSet<'_> {
    /// Returns the memory budget of each device and the host: weights, KV cache, states, and intermediate results.
    /// Devices with unknown memory are omitted.
    pub fn budgets(&self, devices: &[Arc<dyn Device>]) -> Vec<MemoryBudget> {
        let encoders = self.projector.iter().flat_map(|projector| &projector.plans);
        let plans: Vec<&LoadPlan> = std::iter::once(self.model).chain(encoders).collect();
        budgets(&plans, devices)
    }
}

fn budgets(plans: &[&LoadPlan], devices: &[Arc<dyn Device>]) -> Vec<MemoryBudget> {
    let cpu = backend::default_device();
    let budget = |device: &Arc<dyn Device>| {
        let ty = device.buffer_type();
        let stored = plans.iter().flat_map(|plan| {
            [
                &plan.summary.bytes,
                &plan.kv_bytes,
                &plan.state_bytes,
                &plan.compute_bytes,
            ]
        });
        let its = stored.flatten().filter(|(name, _)| name == ty.name());
        let needed_bytes = its.fold(0, |sum: usize, (_, bytes)| sum.saturating_add(*bytes));
        let (free_bytes, all) = device.memory();
        if all == 0 {
            return None;
        }
        Some(MemoryBudget {
            name: ty.name().to_owned(),
            needed_bytes,
            free_bytes,
        })
    };
    let others = devices.iter().filter(|device| device.name() != cpu.name());
    others.chain([&cpu]).filter_map(budget).collect()
}

/// Report, printed as text or JSON.
#[derive(Serialize)]
struct Report<'a> {
    /// Layers on GPUs; the output counts as one.
    device_layers: usize,
    /// Total number of layers; the output counts as one.
    layers: usize,
    memory: Vec<Memory<'a>>,
    /// Context size in tokens.
    context: usize,
    /// KV cache.
    kv: Vec<Memory<'a>>,
    /// Recurrent state.
    states: Vec<Memory<'a>>,
    /// Compute buffers.
    compute: Vec<Memory<'a>>,
    /// Bytes of one recurrent state of all layers; a context stores two per sequence.
    #[serde(skip_serializing_if = "Option::is_none")]
    state_bytes: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    projector: Option<ProjectorSummary>,
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
    /// Layout of the weights in memory.
    layout: &'a str,
    bytes: usize,
}

impl<'a> Report<'a> {
    fn new(plans: &PlanSet<'a>, with_tensors: bool) -> Report<'a> {
        let plan = plans.model;
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
            compute: plan.compute_bytes.iter().map(memory).collect(),
            state_bytes: (!plan.specs.states.is_empty()).then(|| states.sum()),
            projector: plans.projector.map(ProjectorPlan::summary),
            tensors: with_tensors.then(|| tensors.collect()),
        }
    }
}

/// Returns the reason why no more layers are on GPUs, or a change that makes the model fit.
fn advice(
    args: &PlanArgs,
    file: &Path,
    header: &Gguf,
    params: &LoadParams,
    plans: PlanSet<'_>,
) -> Outcome<Option<String>> {
    let planned = plans.model;
    let PlacementParams { devices, margin, .. } = &params.placement;
    if params.placement.n_layers == DeviceLayers::Auto && planned.summary.n_offloaded < planned.summary.n_layers {
        let n = planned.summary.n_offloaded + 1;
        let mut more = params.clone();
        more.placement.n_layers = DeviceLayers::Count(n);
        let model = &plan(file, header, &more)?;
        let budgets = PlanSet { model, ..plans }.budgets(devices);
        let full = budgets
            .iter()
            .find(|budget| budget.needed_bytes.saturating_add(*margin) > budget.free_bytes);
        if let Some(full) = full
            && !devices.is_empty()
        {
            return Ok(Some(format!(
                "{} on {} would need {} of {} free memory, but {} must stay free (-fitt); use a smaller context (-c), cache (-ctk q8_0 -ctv q8_0) or batch (-ub)",
                format::plural(n, "layer"),
                full.name,
                format::mib(full.needed_bytes),
                format::bytes(full.free_bytes),
                format::mib(*margin)
            )));
        }
    }
    if plans.budgets(devices).iter().all(MemoryBudget::fits) {
        return Ok(None);
    }
    change(file, header, args, plans).map(Some)
}

/// Returns the smallest change that makes a model fit: a quantized cache, a smaller context, or smaller
/// weights.
pub fn change(file: &Path, header: &Gguf, args: &PlanArgs, plans: PlanSet<'_>) -> Outcome<String> {
    let planned = plans.model;
    let fits = |args: &PlanArgs| -> Outcome<bool> {
        let params = args.params()?;
        let model = &plan(file, header, &params)?;
        let budgets = PlanSet { model, ..plans }.budgets(&params.placement.devices);
        Ok(budgets.iter().all(MemoryBudget::fits))
    };
    let mut args = args.clone();
    let mut flags = String::new();
    let caches = [("-ctk", &mut args.cache.k), ("-ctv", &mut args.cache.v)];
    for (flag, ty) in caches.into_iter().filter(|(_, ty)| is_above_q8_0(**ty)) {
        *ty = GgmlType::Q8_0;
        flags += &format!(" {flag} q8_0");
    }
    if !flags.is_empty() && fits(&args)? {
        return Ok(format!("fits with{flags}"));
    }
    // Start at the training context if it is smaller.
    let mut n_ctx = match planned.base.n_ctx_train() {
        trained if trained > 0 && trained < planned.n_ctx => trained,
        _ => 1 << (planned.n_ctx.max(2) - 1).ilog2(),
    };
    while n_ctx >= SMALLEST_CONTEXT {
        args.ctx_size = Some(n_ctx);
        if fits(&args)? {
            return Ok(format!("fits with{flags} -c {n_ctx}"));
        }
        n_ctx = 1 << (n_ctx - 1).ilog2();
    }
    Ok("does not fit with any context size; use a smaller or more quantized model, or free memory".to_owned())
}

fn is_above_q8_0(ty: GgmlType) -> bool {
    // 256 elements are a multiple of every type's block size.
    ty.row_bytes(256) > GgmlType::Q8_0.row_bytes(256)
}

/// Smallest useful context in tokens.
const SMALLEST_CONTEXT: usize = 256;

fn print(out: &mut dyn Write, report: &Report<'_>) -> Outcome {
    writeln!(out, "{}/{} layers on devices", report.device_layers, report.layers)?;
    let width = report.memory.iter().map(|m| m.name.len()).max().unwrap_or(0);
    let list = |out: &mut dyn Write, memory: &[Memory<'_>]| -> Outcome {
        for m in memory {
            writeln!(out, "{:<width$}  {:>13}", m.name, format::mib(m.bytes))?;
        }
        Ok(())
    };
    list(out, &report.memory)?;
    if !report.kv.is_empty() {
        writeln!(out, "KV cache for {} tokens", report.context)?;
        list(out, &report.kv)?;
    }
    if !report.states.is_empty() {
        writeln!(out, "recurrent states")?;
        list(out, &report.states)?;
    }
    writeln!(out, "compute buffers")?;
    list(out, &report.compute)?;
    if let Some(bytes) = report.state_bytes {
        writeln!(out, "recurrent state (two per sequence): {}", format::mib(bytes))?;
    }
    if let Some(projector) = &report.projector {
        projector.print(out)?;
    }
    let Some(tensors) = &report.tensors else { return Ok(()) };
    let name_width = tensors.iter().map(|t| t.name.chars().count()).max().unwrap_or(0);
    let layout_width = tensors.iter().map(|t| t.layout.len()).max().unwrap_or(0);
    writeln!(out)?;
    for t in tensors {
        // Tensor names are declared by the architecture, so they need no escaping.
        writeln!(
            out,
            "{:<name_width$}  {:<width$}  {:<6} {:<layout_width$} {:>13}",
            t.name,
            t.memory,
            t.ty,
            t.layout,
            format::mib(t.bytes)
        )?;
    }
    Ok(())
}
