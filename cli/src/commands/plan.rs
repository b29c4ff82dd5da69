//! `llama inspect --plan`: what would go where if a file were loaded, for people or as JSON.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use engine::backend::{self, Device};
use engine::builder::MemoryParams;
use engine::gguf::split::SplitInfo;
use engine::gguf::{Gguf, GgufSet};
use engine::model::{self, DeviceLayers, LoadParams, PlacementParams, Plan};
use kernels::GgmlType;
use serde::Serialize;

use crate::args::{InspectArgs, PlanArgs};
use crate::commands::stdout;
use crate::failure::Outcome;
use crate::human;

/// Prints the plan for a file, whose tensors' data may be missing, or for all parts of a model.
pub fn run(args: &InspectArgs, file: &Path, header: &Gguf) -> Outcome {
    let params = args.planned.params()?;
    let plan = plan(file, header, &params)?;
    let report = Report::new(&plan, args.plan_tensors);
    let mut out = stdout();
    if args.json {
        serde_json::to_writer_pretty(&mut out, &report)?;
        writeln!(out)?;
    } else {
        print(&mut out, &report)?;
        let devices = &params.placement.devices;
        rooms(&plan, devices).iter().try_for_each(|room| room.print(&mut out))?;
        if let Some(advice) = advice(args, file, header, &params, &plan)? {
            writeln!(out, "{advice}")?;
        }
    }
    Ok(out.flush()?)
}

/// The plan for a file or for all parts of a model.
pub fn plan(file: &Path, header: &Gguf, params: &LoadParams) -> Outcome<Plan> {
    let split = SplitInfo::from_metadata(&header.metadata).map_err(|e| e.in_file(file))?;
    Ok(match split {
        None => model::plan(header, file, archs::ALL, params)?,
        Some(_) => model::plan_set(&GgufSet::open(file)?, archs::ALL, params)?,
    })
}

impl PlanArgs {
    /// The engine's settings.
    pub fn params(&self) -> Outcome<LoadParams> {
        let defaults = MemoryParams::default();
        let memory = MemoryParams {
            n_ctx: self.ctx_size.unwrap_or(defaults.n_ctx),
            n_batch: self.batch_size,
            n_ubatch: self.ubatch_size.min(self.batch_size),
            n_seq_max: self.n_parallel,
            type_k: self.cache_type_k,
            type_v: self.cache_type_v,
            ..defaults
        };
        let mut params = self.placement.params(Some(memory))?;
        // A plan says why no layer fits.
        params.placement.needs_layer = false;
        Ok(params)
    }
}

/// What a memory would have to hold, beside what is free of it.
#[derive(Serialize)]
pub struct Room {
    name: String,
    needed_bytes: usize,
    free_bytes: usize,
}

impl Room {
    /// True if there is enough.
    pub fn fits(&self) -> bool {
        self.needed_bytes <= self.free_bytes
    }

    /// A line of it.
    pub fn print(&self, out: &mut dyn Write) -> Outcome {
        let fits = if self.fits() { "" } else { ": too much" };
        let (needed, free) = (human::mib(self.needed_bytes), human::bytes(self.free_bytes));
        Ok(writeln!(
            out,
            "{} takes {needed} of {free} that are free{fits}",
            self.name
        )?)
    }
}

/// Weights, keys, values, states and intermediate results in the memory of these devices and of the CPU, those of known size.
pub fn rooms(plan: &Plan, devices: &[Arc<dyn Device>]) -> Vec<Room> {
    let cpu = backend::default_device();
    let room = |device: &Arc<dyn Device>| {
        let ty = device.buffer_type();
        let held = plan.summary.bytes.iter().chain(&plan.kv_bytes).chain(&plan.state_bytes);
        let its = held.chain(&plan.compute_bytes).filter(|(name, _)| name == ty.name());
        let needed_bytes = its.fold(0, |sum: usize, (_, bytes)| sum.saturating_add(*bytes));
        let (free_bytes, all) = device.memory();
        (all > 0).then(|| Room {
            name: ty.name().to_owned(),
            needed_bytes,
            free_bytes,
        })
    };
    let others = devices.iter().filter(|device| device.name() != cpu.name());
    others.chain([&cpu]).filter_map(room).collect()
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
    /// What its intermediate results take.
    compute: Vec<Memory<'a>>,
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
            compute: plan.compute_bytes.iter().map(memory).collect(),
            state_bytes: (!plan.specs.states.is_empty()).then(|| states.sum()),
            tensors: with_tensors.then(|| tensors.collect()),
        }
    }
}

/// What keeps layers from devices, or else what would make fit what does not.
fn advice(
    args: &InspectArgs,
    file: &Path,
    header: &Gguf,
    params: &LoadParams,
    planned: &Plan,
) -> Outcome<Option<String>> {
    let PlacementParams { devices, margin, .. } = &params.placement;
    if params.placement.n_layers == DeviceLayers::Auto && planned.summary.n_offloaded < planned.summary.n_layers {
        let n = planned.summary.n_offloaded + 1;
        let mut more = params.clone();
        more.placement.n_layers = DeviceLayers::Count(n);
        let rooms = rooms(&plan(file, header, &more)?, devices);
        let full = rooms
            .iter()
            .find(|room| room.needed_bytes.saturating_add(*margin) > room.free_bytes);
        if let Some(full) = full.filter(|_| !devices.is_empty()) {
            return Ok(Some(format!(
                "with {} {} would take {} of {} that are free, of which {} are to stay free (-fitt); a smaller context (-c), cache (-ctk q8_0 -ctv q8_0) or batch (-ub) takes less",
                human::plural(n, "layer"),
                full.name,
                human::mib(full.needed_bytes),
                human::bytes(full.free_bytes),
                human::mib(*margin)
            )));
        }
    }
    match self::rooms(planned, devices).iter().all(Room::fits) {
        true => Ok(None),
        false => change(file, header, &args.planned, planned).map(Some),
    }
}

/// The least change with which a model fits that does not: a smaller cache, a smaller context, smaller weights.
pub fn change(file: &Path, header: &Gguf, args: &PlanArgs, planned: &Plan) -> Outcome<String> {
    let fits = |args: &PlanArgs| -> Outcome<bool> {
        let params = args.params()?;
        let plan = plan(file, header, &params)?;
        Ok(rooms(&plan, &params.placement.devices).iter().all(Room::fits))
    };
    let mut args = args.clone();
    let mut flags = String::new();
    let caches = [("-ctk", &mut args.cache_type_k), ("-ctv", &mut args.cache_type_v)];
    for (flag, ty) in caches.into_iter().filter(|(_, ty)| is_above_q8_0(**ty)) {
        *ty = GgmlType::Q8_0;
        flags += &format!(" {flag} q8_0");
    }
    if !flags.is_empty() && fits(&args)? {
        return Ok(format!("it fits with{flags}"));
    }
    // Beyond what the model was trained for no context is worth a try.
    let mut n_ctx = match planned.base.n_ctx_train() {
        trained if trained > 0 && trained < planned.n_ctx => trained,
        _ => 1 << (planned.n_ctx.max(2) - 1).ilog2(),
    };
    while n_ctx >= SMALLEST_CONTEXT {
        args.ctx_size = Some(n_ctx);
        if fits(&args)? {
            return Ok(format!("it fits with{flags} -c {n_ctx}"));
        }
        n_ctx = 1 << (n_ctx - 1).ilog2();
    }
    Ok("no context is small enough: take a smaller model or one quantized to fewer bits, or free memory".to_owned())
}

fn is_above_q8_0(ty: GgmlType) -> bool {
    // Of as many elements as a block of any type has.
    ty.row_bytes(256) > GgmlType::Q8_0.row_bytes(256)
}

/// Tokens of a context that is still of use.
const SMALLEST_CONTEXT: usize = 256;

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
    writeln!(out, "compute buffers")?;
    list(out, &report.compute)?;
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
