//! Placement: which device computes each layer, and which memory each tensor goes to.

use std::collections::HashSet;
use std::sync::Arc;

use kernels::GgmlType;
use regex_lite::Regex;

use crate::backend::{self, BufferType, Device};
use crate::build::MemorySpecs;
use crate::graph::{Graph, Name, ShapeError, Tensor, TensorId};

use super::{Consumer, TableRow};

/// How weights are divided over several devices.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SplitMode {
    /// All of them on the main device.
    None,
    /// By whole layers.
    #[default]
    Layer,
    /// Each matrix by rows.
    Row,
}

/// How many layers go to the devices.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum DeviceLayers {
    /// As many as their free memory holds.
    #[default]
    Auto,
    /// This many, the output counting as one, from the last layer down.
    Count(usize),
}

/// Tensors whose names match go to a certain memory.
#[derive(Clone, Debug)]
pub struct TensorOverride {
    /// Searched for in the tensor's name.
    pub pattern: Regex,
    /// Name of the buffer type.
    pub buffer_type: String,
}

impl TensorOverride {
    /// Index of its memory.
    fn memory(&self, types: &[Arc<dyn BufferType>]) -> Option<usize> {
        types
            .iter()
            .position(|t| t.name().eq_ignore_ascii_case(&self.buffer_type))
    }
}

/// Settings of a placement. With no devices everything stays on the CPU.
#[derive(Clone)]
pub struct PlacementParams {
    /// Devices beside the CPU, in order.
    pub devices: Vec<Arc<dyn Device>>,
    /// Layers for them.
    pub n_layers: DeviceLayers,
    /// Share of the layers of each device; empty: by free memory.
    pub tensor_split: Vec<f32>,
    /// Division over several devices.
    pub split_mode: SplitMode,
    /// The device for [`SplitMode::None`].
    pub main_device: usize,
    /// Exceptions; the first that matches counts.
    pub overrides: Vec<TensorOverride>,
    /// Keep keys and values in the memory of the layer's device.
    pub offload_kv: bool,
    /// Cells that [`DeviceLayers::Auto`] leaves room for.
    pub kv_cells: usize,
    /// Bytes of each device that [`DeviceLayers::Auto`] leaves free.
    pub margin: usize,
}

impl Default for PlacementParams {
    fn default() -> PlacementParams {
        PlacementParams {
            devices: Vec::new(),
            n_layers: DeviceLayers::Auto,
            tensor_split: Vec::new(),
            split_mode: SplitMode::Layer,
            main_device: 0,
            overrides: Vec::new(),
            offload_kv: true,
            kv_cells: 4096,
            margin: 256 << 20,
        }
    }
}

/// A placement that is not possible.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlacementError {
    /// A setting refers to a device that is not there.
    #[error("{setting} names device {index}, there are {count}")]
    NoSuchDevice {
        /// The setting.
        setting: &'static str,
        /// Index asked for.
        index: usize,
        /// Devices there are.
        count: usize,
    },
    /// Shares that are no shares.
    #[error("tensor_split must hold up to {count} non-negative numbers, not all of them 0")]
    Split {
        /// Devices there are.
        count: usize,
    },
    /// An override names memory that no device has.
    #[error("there is no memory `{found}` to override to; there is {}", .known.join(", "))]
    NoSuchMemory {
        /// The name.
        found: String,
        /// Names there are.
        known: Vec<String>,
    },
    /// The devices cannot hold parts of a matrix.
    #[error("device `{device}` cannot split matrices by rows; use split mode `layer`")]
    NoRowSplit {
        /// The device.
        device: String,
    },
    /// No memory of which a backend can use the tensor.
    #[error("no device computes with tensor `{tensor}` of type {ty}")]
    Unusable {
        /// The tensor.
        tensor: String,
        /// Its type.
        ty: GgmlType,
    },
}

/// Where everything goes.
#[derive(Clone)]
pub struct Placement {
    /// Devices, the CPU last.
    pub devices: Vec<Arc<dyn Device>>,
    /// Index of the device of each layer; the output is one more.
    pub layers: Vec<usize>,
    /// Kinds of memory in use, those of the devices in their order.
    pub types: Vec<Arc<dyn BufferType>>,
    /// Index of the memory of each row of the tensor table.
    pub rows: Vec<usize>,
    offload_kv: bool,
}

/// What a placement amounts to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacementSummary {
    /// Layers on devices other than the CPU, the output counting as one.
    pub n_offloaded: usize,
    /// Layers in all, the output counting as one.
    pub n_layers: usize,
    /// Bytes of weights by memory.
    pub bytes: Vec<(String, usize)>,
}

impl Placement {
    /// Decides for a model's tensor table.
    pub fn new(
        params: &PlacementParams,
        rows: &[TableRow],
        n_layer: usize,
        memory: &MemorySpecs,
    ) -> Result<Placement, PlacementError> {
        let cpu = backend::default_device();
        let mut devices: Vec<_> = params
            .devices
            .iter()
            .filter(|d| d.name() != cpu.name())
            .cloned()
            .collect();
        let n_devices = devices.len();
        check(params, &devices)?;
        devices.push(cpu);
        let mut types: Vec<Arc<dyn BufferType>> = Vec::new();
        for device in &devices {
            let ty = device.buffer_type();
            if !types.iter().any(|t| t.name() == ty.name()) {
                types.push(ty);
            }
        }
        check_overrides(&params.overrides, &types)?;
        let n_offloaded = match params.n_layers {
            _ if n_devices == 0 => 0,
            DeviceLayers::Count(n) => n.min(n_layer + 1),
            DeviceLayers::Auto => layers_that_fit(params, &devices[..n_devices], rows, n_layer, memory),
        };
        let layers = assign_layers(params, &devices[..n_devices], n_layer, n_offloaded);
        let mut placement = Placement {
            devices,
            layers,
            types,
            rows: Vec::new(),
            offload_kv: params.offload_kv,
        };
        placement.rows = rows
            .iter()
            .map(|row| placement.memory_of(row, &params.overrides))
            .collect::<Result<_, _>>()?;
        Ok(placement)
    }

    /// The device that keeps the keys, values and states of a layer.
    pub fn kv_device(&self, layer: usize) -> &Arc<dyn Device> {
        let cpu = self.devices.len() - 1;
        let device = if self.offload_kv {
            self.layers.get(layer).copied().unwrap_or(cpu)
        } else {
            cpu
        };
        &self.devices[device]
    }

    /// The CPU, which takes what no device does.
    pub fn cpu(&self) -> &Arc<dyn Device> {
        self.devices.last().expect("the CPU is always there")
    }

    /// Layers and bytes by memory.
    pub fn summary(&self, rows: &[TableRow]) -> PlacementSummary {
        let cpu = self.devices.len() - 1;
        let mut bytes: Vec<_> = self.types.iter().map(|t| (t.name().to_owned(), 0)).collect();
        // A tied output shares its tensor with the embedding, unless it lies elsewhere.
        let mut seen = HashSet::new();
        for (row, &ty) in rows.iter().zip(&self.rows) {
            if seen.insert((row.file_index, row.offset, ty)) {
                bytes[ty].1 += row.bytes();
            }
        }
        PlacementSummary {
            n_offloaded: self.layers.iter().filter(|&&d| d != cpu).count(),
            n_layers: self.layers.len(),
            bytes,
        }
    }

    /// The first memory, of the layer's device or the CPU, in which a backend computes with the tensor.
    fn memory_of(&self, row: &TableRow, overrides: &[TensorOverride]) -> Result<usize, PlacementError> {
        let chosen = overrides.iter().find(|o| o.pattern.is_match(&row.name));
        if let Some(memory) = chosen.and_then(|o| o.memory(&self.types)) {
            return Ok(memory);
        }
        let cpu = self.devices.len() - 1;
        let device = match (row.layer, row.consumer) {
            (Some(il), _) => self.layers.get(il as usize).copied().unwrap_or(cpu),
            // Reading a few rows of a large table is not worth its place on a device.
            (None, Consumer::GetRows) => cpu,
            (None, _) => self.layers.last().copied().unwrap_or(cpu),
        };
        for device in [&self.devices[device], &self.devices[cpu]] {
            if computes_with(device.as_ref(), row) {
                let name = device.buffer_type().name().to_owned();
                return Ok(self
                    .types
                    .iter()
                    .position(|t| t.name() == name)
                    .expect("every device's memory is listed"));
            }
        }
        Err(PlacementError::Unusable {
            tensor: row.name.clone(),
            ty: row.ty,
        })
    }
}

/// Each must name memory that there is, whether or not a tensor matches.
fn check_overrides(overrides: &[TensorOverride], types: &[Arc<dyn BufferType>]) -> Result<(), PlacementError> {
    match overrides.iter().find(|o| o.memory(types).is_none()) {
        Some(o) => Err(PlacementError::NoSuchMemory {
            found: o.buffer_type.clone(),
            known: types.iter().map(|t| t.name().to_owned()).collect(),
        }),
        None => Ok(()),
    }
}

fn check(params: &PlacementParams, devices: &[Arc<dyn Device>]) -> Result<(), PlacementError> {
    let count = devices.len();
    if count == 0 {
        return Ok(());
    }
    if params.split_mode == SplitMode::None && params.main_device >= count {
        return Err(PlacementError::NoSuchDevice {
            setting: "main_device",
            index: params.main_device,
            count,
        });
    }
    let shares = &params.tensor_split;
    let bad = |s: &f32| !s.is_finite() || *s < 0.0;
    if shares.len() > count || shares.iter().any(bad) || (!shares.is_empty() && shares.iter().all(|&s| s == 0.0)) {
        return Err(PlacementError::Split { count });
    }
    if params.split_mode == SplitMode::Row && count > 1 {
        return Err(PlacementError::NoRowSplit {
            device: devices[0].name().to_owned(),
        });
    }
    Ok(())
}

/// Gives the last `n_offloaded` of all layers and the output to the devices by their shares, the rest to the CPU.
fn assign_layers(
    params: &PlacementParams,
    devices: &[Arc<dyn Device>],
    n_layer: usize,
    n_offloaded: usize,
) -> Vec<usize> {
    let shares = shares(params, devices);
    let total: f64 = shares.iter().sum();
    let first = n_layer + 1 - n_offloaded;
    (0..=n_layer)
        .map(|il| {
            if il < first {
                return devices.len();
            }
            // The first device whose cumulative share lies beyond the layer's place among the offloaded ones.
            let place = (il - first) as f64 / n_offloaded as f64 * total;
            let mut sum = 0.0;
            let beyond = shares.iter().position(|s| {
                sum += s;
                sum > place
            });
            beyond.unwrap_or(devices.len() - 1)
        })
        .collect()
}

fn shares(params: &PlacementParams, devices: &[Arc<dyn Device>]) -> Vec<f64> {
    if params.split_mode == SplitMode::None {
        return (0..devices.len())
            .map(|d| (d == params.main_device) as u8 as f64)
            .collect();
    }
    if !params.tensor_split.is_empty() {
        return (0..devices.len())
            .map(|d| f64::from(params.tensor_split.get(d).copied().unwrap_or(0.0)))
            .collect();
    }
    devices.iter().map(|d| d.memory().0.max(1) as f64).collect()
}

/// How many layers, from the last down, fit into the free memory of the devices with their keys and values.
fn layers_that_fit(
    params: &PlacementParams,
    devices: &[Arc<dyn Device>],
    rows: &[TableRow],
    n_layer: usize,
    memory: &MemorySpecs,
) -> usize {
    let mut sizes = vec![0usize; n_layer + 1];
    for row in rows {
        match row.layer {
            Some(il) if (il as usize) < n_layer => sizes[il as usize] += row.bytes(),
            None if row.consumer != Consumer::GetRows => sizes[n_layer] += row.bytes(),
            _ => {}
        }
    }
    if params.offload_kv {
        // A state for now and one from before, for one sequence.
        let states = memory.states.iter().map(|s| (s.layer, 2 * size_of::<f32>() * s.row));
        let kv = (memory.kv.iter()).map(|s| (s.layer, 2 * (s.k_row + s.v_row) * params.kv_cells));
        for (layer, bytes) in kv.chain(states).filter(|&(layer, _)| layer < n_layer) {
            sizes[layer] += bytes;
        }
    }
    let fits = |n: usize| {
        let mut used = vec![0usize; devices.len() + 1];
        for (il, d) in assign_layers(params, devices, n_layer, n).into_iter().enumerate() {
            used[d] = used[d].saturating_add(sizes[il]);
        }
        devices
            .iter()
            .zip(used)
            .all(|(d, used)| used.saturating_add(params.margin) <= d.memory().0 || used == 0)
    };
    (0..=n_layer + 1).rev().find(|&n| fits(n)).unwrap_or(0)
}

/// Asks the device about the op that will consume the tensor, on a graph made for the question.
fn computes_with(device: &dyn Device, row: &TableRow) -> bool {
    let mut g = Graph::new();
    let w = g.push(Tensor::new(
        row.stored_type(),
        row.ne,
        Name {
            base: row.base,
            layer: row.layer,
        },
    ));
    g.tensor_mut(w).flags.weight = true;
    probe_op(&mut g, w, row).is_ok_and(|node| device.supports_op(&g, node))
}

fn probe_op(g: &mut Graph, w: TensorId, row: &TableRow) -> Result<TensorId, ShapeError> {
    const N_TOKENS: usize = 512;
    let [k, m, n_expert, _] = row.ne;
    match row.consumer {
        Consumer::GetRows => {
            let ids = g.input(GgmlType::I32, [N_TOKENS, n_expert, 1, 1], "ids");
            g.get_rows(w, ids)
        }
        Consumer::MulMat => {
            let x = g.input(GgmlType::F32, [k, N_TOKENS, n_expert, 1], "x");
            g.mul_mat(w, x)
        }
        Consumer::MulMatId => {
            let x = g.input(GgmlType::F32, [k, 1, N_TOKENS, 1], "x");
            let ids = g.input(GgmlType::I32, [1, N_TOKENS, 1, 1], "ids");
            g.mul_mat_id(w, x, ids)
        }
        Consumer::Elementwise => {
            let x = g.input(GgmlType::F32, [k, m, n_expert, row.ne[3]], "x");
            g.mul(x, w)
        }
    }
}
