//! Placement: which device computes each layer, and which memory each tensor goes to.

use std::collections::HashSet;
use std::sync::Arc;

use kernels::GgmlType;
use regex_lite::Regex;

use crate::backend::{self, BufferType, Device, MemoryMap, Usage, WeightStorage};
use crate::builder::{MemoryParams, MemorySpecs};
use crate::graph::{Flags, Graph, Home, Layout, Name, ShapeError, TensorId, dense_bytes};

use super::fit::layers_that_fit;
use super::{Consumer, TableRow};

/// How weights are split over several devices.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SplitMode {
    /// All of them on the main device.
    None,
    /// By whole layers.
    #[default]
    Layer,
    /// Each matrix by rows, on all devices that are named, the CPU too if it is; everything else on the main device.
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
    /// Share of each device, of the layers or, with [`SplitMode::Row`], of the rows; empty: by free memory.
    pub tensor_split: Vec<f32>,
    /// Division over several devices.
    pub split_mode: SplitMode,
    /// The device for [`SplitMode::None`] and [`SplitMode::Row`], counted without the CPU.
    pub main_device: usize,
    /// Tensor overrides; the first match wins.
    pub overrides: Vec<TensorOverride>,
    /// Keep keys and values in the memory of the layer's device.
    pub offload_kv: bool,
    /// Let devices compute products of many columns although the weights lie in the memory of the CPU, from which they are copied each time. Weights in
    /// a layout that the CPU alone reads stay where they are.
    pub offload_ops: bool,
    /// Store weights in the layouts that devices like best. If false all are plain, as in the file.
    pub repack: bool,
    /// The memory of a context that [`DeviceLayers::Auto`] leaves room for.
    pub memory: MemoryParams,
    /// Bytes of each device that [`DeviceLayers::Auto`] leaves free.
    pub margin: usize,
    /// If [`DeviceLayers::Auto`] finds that no layer fits, that is an error.
    pub needs_layer: bool,
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
            offload_ops: true,
            repack: true,
            memory: MemoryParams::default(),
            margin: 256 << 20,
            needs_layer: false,
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
    /// Invalid shares.
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
    /// Devices have no room for a single layer.
    #[error(
        "no layer fits into what is free of {device}: one takes {needed} bytes with its intermediate results, {free} are free, and {margin} of them are to stay so"
    )]
    NoLayerFits {
        /// Name of the memory.
        device: String,
        /// Bytes that a layer takes there.
        needed: usize,
        /// Bytes that are free.
        free: usize,
        /// Bytes that are to stay free.
        margin: usize,
    },
    /// What graphs need could not be found out.
    #[error("the memory of intermediate results cannot be planned: {fault}")]
    Unplanned {
        /// What is in the way.
        fault: String,
    },
    /// No memory in which a backend can use the tensor.
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
    /// The parts of each row of the tensor table; of most one with all rows.
    pub parts: Vec<Vec<RowPart>>,
    offload_kv: bool,
    offload_ops: bool,
    repack: bool,
}

/// Consecutive rows of a matrix that lie in one memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowPart {
    /// Index of the memory.
    pub memory: usize,
    /// How many rows.
    pub n_rows: usize,
    /// How they are arranged there.
    pub layout: Layout,
}

/// What a probe of the graph tells about the placement of its tensors.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Needs {
    /// What the graph needs from a memory.
    pub memory: MemorySpecs,
    /// Rows of the smallest table that it reads by position.
    pub max_positions: Option<usize>,
    /// By row of the tensor table: only products use the tensor, and they can be computed part by part.
    pub divisible: Vec<bool>,
    /// By row of the tensor table: only products and look-ups use the tensor, as their matrix or table, whole. Then any layout that those read
    /// will do.
    pub read_by_rows: Vec<bool>,
}

impl Needs {
    /// Takes account of another graph that uses the same weights, with a memory of its own.
    pub(super) fn use_also(&mut self, other: &Needs) {
        self.max_positions = self.max_positions.into_iter().chain(other.max_positions).min();
        let and = |all: &mut [bool], also: &[bool]| all.iter_mut().zip(also).for_each(|(a, b)| *a &= b);
        and(&mut self.divisible, &other.divisible);
        and(&mut self.read_by_rows, &other.read_by_rows);
    }

    fn is_read_by_rows(&self, row: usize) -> bool {
        self.read_by_rows.get(row).is_some_and(|&by_rows| by_rows)
    }
}

/// Summary of a placement.
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
        needs: &Needs,
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
            let storages = device.weight_storage().into_iter().map(|s| s.buffer_type);
            for ty in [device.buffer_type()].into_iter().chain(storages) {
                if !types.iter().any(|t| t.name() == ty.name()) {
                    types.push(ty);
                }
            }
        }
        check_overrides(&params.overrides, &types)?;
        let n_offloaded = match params.n_layers {
            _ if n_devices == 0 => 0,
            DeviceLayers::Count(n) => n.min(n_layer + 1),
            DeviceLayers::Auto => layers_that_fit(params, &devices[..n_devices], rows, n_layer, needs, &[]),
        };
        let layers = assign_layers(params, &devices[..n_devices], n_layer, n_offloaded);
        let mut placement = Placement {
            devices,
            layers,
            types,
            parts: Vec::new(),
            offload_kv: params.offload_kv,
            offload_ops: params.offload_ops,
            repack: params.repack,
        };
        let shares = row_shares(params, &placement.devices);
        for (i, row) in rows.iter().enumerate() {
            let is_divisible = needs.divisible.get(i).is_some_and(|&d| d);
            let mut parts = if is_divisible {
                placement.parts_of(row, &shares, &params.overrides)
            } else {
                Vec::new()
            };
            if parts.is_empty() {
                // Look-ups read few rows: for them alone no layout is worth its making.
                let is_multiplied = row.consumer != Consumer::GetRows && needs.is_read_by_rows(i);
                parts.push(placement.place(row, is_multiplied, &params.overrides)?);
            }
            placement.parts.push(parts);
        }
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

    /// The first device whose memory this is; the CPU if it is none's.
    pub fn device_of_memory(&self, ty: &dyn BufferType) -> &Arc<dyn Device> {
        let is_its = |d: &&Arc<dyn Device>| {
            d.buffer_type().name() == ty.name()
                || (d.weight_storage().iter()).any(|storage| storage.buffer_type.name() == ty.name())
        };
        self.devices.iter().find(is_its).unwrap_or_else(|| self.cpu())
    }

    /// Layers and bytes by memory.
    pub fn summary(&self, rows: &[TableRow]) -> PlacementSummary {
        let cpu = self.devices.len() - 1;
        let mut bytes: Vec<_> = self.types.iter().map(|t| (t.name().to_owned(), 0)).collect();
        // A tied output shares its tensor with the embedding, unless it lies elsewhere.
        let mut seen = HashSet::new();
        for (i, row) in rows.iter().enumerate() {
            for part in &self.parts[i] {
                if seen.insert((row.file_index, row.offset, part.memory, part.layout.name())) {
                    bytes[part.memory].1 += part.bytes(row);
                }
            }
        }
        PlacementSummary {
            n_offloaded: self.layers.iter().filter(|&&d| d != cpu).count(),
            n_layers: self.layers.len(),
            bytes,
        }
    }

    /// True if devices may compute products whose weights lie in the memory of the CPU.
    pub fn offloads_ops(&self) -> bool {
        self.offload_ops
    }

    /// True if weights may be stored in other layouts than the file's.
    pub fn repacks(&self) -> bool {
        self.repack
    }

    /// True if what is repacked in the CPU's memory fits into its free bytes, of so many in all: 0 where that cannot be found out.
    pub(super) fn has_room_to_repack(&self, rows: &[TableRow], (free, total): (usize, usize)) -> bool {
        let own = self.memory_index(&*self.cpu().buffer_type());
        let is_repacked = |part: &&RowPart| part.memory == own && !part.layout.is_plain();
        let of_row = |(row, parts): (&TableRow, &Vec<RowPart>)| -> usize {
            parts.iter().filter(is_repacked).map(|part| part.bytes(row)).sum()
        };
        let needed: usize = rows.iter().zip(&self.parts).map(of_row).sum();
        total == 0 || needed <= free
    }

    /// Lets look-ups in a table read the repacked copy that products have of it (a tied output), where the device can, so that no other copy is in
    /// the same memory.
    pub(super) fn share_tied_tables(&mut self, rows: &[TableRow], needs: &Needs) {
        for (i, row) in rows.iter().enumerate() {
            let is_tied = |other: &TableRow| (other.file_index, other.offset) == (row.file_index, row.offset);
            let is_shared = |&(j, other): &(usize, &TableRow)| j != i && is_tied(other) && !self.is_plain(j);
            if row.consumer != Consumer::GetRows || !needs.is_read_by_rows(i) {
                continue;
            }
            let Some((j, _)) = rows.iter().enumerate().find(is_shared) else {
                continue;
            };
            if let ([table], [copy]) = (&self.parts[i][..], &self.parts[j][..]) {
                let storage = WeightStorage {
                    buffer_type: self.types[copy.memory].clone(),
                    layout: copy.layout,
                };
                let device = self.device_of_memory(&*storage.buffer_type);
                if table.memory == copy.memory && computes_with(device.as_ref(), row, &storage) {
                    self.parts[i] = vec![*copy];
                }
            }
        }
    }

    /// True if a row of the tensor table is stored as in the file.
    fn is_plain(&self, row: usize) -> bool {
        self.parts[row].iter().all(|part| part.layout.is_plain())
    }

    /// The rows of a matrix that each device gets by its share. None if it stays whole: because it is no single matrix, its layer is the
    /// CPU's, it was given a place by name, or some device cannot compute with it.
    fn parts_of(&self, row: &TableRow, shares: &[(usize, f64)], overrides: &[TensorOverride]) -> Vec<RowPart> {
        let cpu = self.devices.len() - 1;
        let is_matrix = row.consumer == Consumer::MulMat && row.ne[2..] == [1, 1] && row.stored_type() == row.ty;
        if !is_matrix || self.device_of(row) == cpu || overrides.iter().any(|o| o.pattern.is_match(&row.name)) {
            return Vec::new();
        }
        let counts = divide(row.ne[1], shares.iter().map(|&(_, share)| share));
        let taken = shares.iter().zip(counts).filter(|(_, n)| *n > 0);
        let devices: Vec<_> = taken.map(|(&(d, _), n)| (&self.devices[d], n)).collect();
        if devices.len() < 2 {
            return Vec::new();
        }
        let part = |(device, n_rows): (&Arc<dyn Device>, usize)| {
            let mut part = row.clone();
            part.ne[1] = n_rows;
            self.places_on(device.as_ref(), &part, true).next()
        };
        let parts: Option<Vec<_>> = devices.into_iter().map(part).collect();
        parts.unwrap_or_default()
    }

    /// Index of the device of a tensor's layer.
    fn device_of(&self, row: &TableRow) -> usize {
        let cpu = self.devices.len() - 1;
        match (row.layer, row.consumer) {
            (Some(il), _) => self.layers.get(il as usize).copied().unwrap_or(cpu),
            // Embedding look-ups read few rows: the table is not worth device memory.
            (None, Consumer::GetRows) => cpu,
            (None, _) => self.layers.last().copied().unwrap_or(cpu),
        }
    }

    fn memory_index(&self, ty: &dyn BufferType) -> usize {
        let same = |t: &Arc<dyn BufferType>| t.name() == ty.name();
        self.types
            .iter()
            .position(same)
            .expect("every device's memory is listed")
    }

    /// All of a tensor on its layer's device or the CPU, whichever first computes with it.
    fn place(
        &self,
        row: &TableRow,
        is_multiplied: bool,
        overrides: &[TensorOverride],
    ) -> Result<RowPart, PlacementError> {
        let chosen = overrides.iter().find(|o| o.pattern.is_match(&row.name));
        if let Some(memory) = chosen.and_then(|o| o.memory(&self.types)) {
            let device = self.device_of_memory(&*self.types[memory]);
            let mut parts = self.places_on(device.as_ref(), row, is_multiplied);
            let as_in_file = RowPart {
                memory,
                n_rows: row.ne[1],
                layout: Layout::Plain,
            };
            return Ok(parts.find(|part| part.memory == memory).unwrap_or(as_in_file));
        }
        let (device, cpu) = (self.device_of(row), self.devices.len() - 1);
        let devices = [&self.devices[device], &self.devices[cpu]];
        let place = devices
            .iter()
            .find_map(|d| self.places_on(d.as_ref(), row, is_multiplied).next());
        place.ok_or_else(|| PlacementError::Unusable {
            tensor: row.name.clone(),
            ty: row.ty,
        })
    }

    /// All of a tensor on a device, in each storage that the device offers and can compute with, the best first. `is_multiplied`: only
    /// products use the tensor.
    fn places_on(&self, device: &dyn Device, row: &TableRow, is_multiplied: bool) -> impl Iterator<Item = RowPart> {
        let may_repack = self.repack && is_multiplied && row.stored_type() == row.ty;
        let storages = device.weight_storage().into_iter();
        let possible = storages
            .filter(move |s| s.layout.is_plain() || (may_repack && s.layout.accepts(row.ty, row.ne)))
            .filter(move |s| computes_with(device, row, s));
        possible.map(|WeightStorage { buffer_type, layout }| RowPart {
            memory: self.memory_index(&*buffer_type),
            n_rows: row.ne[1],
            layout,
        })
    }
}

impl RowPart {
    /// The part's shape, of a tensor of this shape.
    pub(super) fn shape(&self, [n, _, n2, n3]: [usize; 4]) -> [usize; 4] {
        [n, self.n_rows, n2, n3]
    }

    /// Bytes that the part takes of this tensor.
    pub(super) fn bytes(&self, row: &TableRow) -> usize {
        dense_bytes(row.stored_type(), self.shape(row.ne), self.layout)
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
    if params.split_mode != SplitMode::Layer && params.main_device >= count {
        return Err(PlacementError::NoSuchDevice {
            setting: "main_device",
            index: params.main_device,
            count,
        });
    }
    let shares = &params.tensor_split;
    // The CPU takes a share of the rows if it is named.
    let count = match params.split_mode {
        SplitMode::Row => params.devices.len(),
        _ => count,
    };
    let bad = |s: &f32| !s.is_finite() || *s < 0.0;
    if shares.len() > count || shares.iter().any(bad) || (!shares.is_empty() && shares.iter().all(|&s| s == 0.0)) {
        return Err(PlacementError::Split { count });
    }
    Ok(())
}

/// Gives the last `n_offloaded` of all layers and the output to the devices by their shares, the rest to the CPU.
pub(super) fn assign_layers(
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
    if params.split_mode != SplitMode::Layer {
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

/// With [`SplitMode::Row`], the devices that divide the rows of matrices, by index, with their shares.
pub(super) fn row_shares(params: &PlacementParams, devices: &[Arc<dyn Device>]) -> Vec<(usize, f64)> {
    if params.split_mode != SplitMode::Row {
        return Vec::new();
    }
    let share = |(i, device): (usize, &Arc<dyn Device>)| {
        let index = devices.iter().position(|d| d.name() == device.name())?;
        let share = match params.tensor_split.as_slice() {
            [] => device.memory().0.max(1) as f64,
            split => f64::from(split.get(i).copied().unwrap_or(0.0)),
        };
        Some((index, share))
    };
    params.devices.iter().enumerate().filter_map(share).collect()
}

/// Kernels multiply several rows at once: parts begin at multiples of this where there are enough rows.
const ROW_STEP: usize = 32;

/// Divides `n` rows by shares.
fn divide(n: usize, shares: impl ExactSizeIterator<Item = f64> + Clone) -> Vec<usize> {
    let total: f64 = shares.clone().sum();
    let step = if n >= ROW_STEP * shares.len() { ROW_STEP } else { 1 };
    let (mut sum, mut begin) = (0.0, 0);
    let mut counts = Vec::with_capacity(shares.len());
    for share in shares {
        sum += share;
        // The rounded end of the last share with anything in it is the end: `sum` is then `total`.
        let end = if sum >= total {
            n
        } else {
            ((sum / total * n as f64 / step as f64).round() as usize * step).min(n)
        };
        counts.push(end - begin);
        begin = end;
    }
    counts
}

/// Asks the device about the op that will consume the tensor in this storage, on a graph made for the question.
fn computes_with(device: &dyn Device, row: &TableRow, storage: &WeightStorage) -> bool {
    // Nothing is computed: a buffer without bytes says what kind of memory it is.
    let Ok(buffer) = storage.buffer_type.allocate(0) else {
        return false;
    };
    let mut memory = MemoryMap::default();
    let home = Home {
        buffer: memory.insert(buffer, Usage::Weights),
        offset: 0,
    };
    let name = Name {
        base: row.base,
        layer: row.layer,
    };
    let flags = Flags {
        weight: true,
        ..Flags::default()
    };
    let mut g = Graph::new();
    let w = g.external(row.stored_type(), row.ne, name, home, flags);
    g.tensor_mut(w).layout = storage.layout;
    probe_op(&mut g, w, row).is_ok_and(|node| device.supports_op(&g, node, &memory))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_repacked_weights_need_room() {
        let row = TableRow {
            name: "w".to_owned(),
            base: "w",
            layer: None,
            ne: [256, 64, 1, 1],
            ty: GgmlType::Q4_0,
            consumer: Consumer::MulMat,
            shard: 0,
            file_index: 0,
            offset: 0,
        };
        let needs = Needs {
            read_by_rows: vec![true],
            ..Needs::default()
        };
        let placed = |repack| {
            let params = PlacementParams {
                repack,
                ..PlacementParams::default()
            };
            Placement::new(&params, std::slice::from_ref(&row), 1, &needs).unwrap()
        };
        let bytes = row.bytes();
        let (repacked, plain) = (placed(true), placed(false));
        assert!(!repacked.parts[0][0].layout.is_plain());
        let has_room = |placement: &Placement, memory| placement.has_room_to_repack(std::slice::from_ref(&row), memory);
        assert!(has_room(&repacked, (bytes, 1 << 40)) && !has_room(&repacked, (bytes - 1, 1 << 40)));
        assert!(has_room(&repacked, (0, 0)), "nobody knows");
        assert!(has_room(&plain, (0, 1 << 40)));
    }

    #[test]
    fn rows_are_divided_by_shares() {
        let divided = |n: usize, shares: &[f64]| divide(n, shares.iter().copied());
        assert_eq!(divided(256, &[1.0, 1.0]), [128, 128]);
        assert_eq!(divided(256, &[3.0, 1.0]), [192, 64]);
        assert_eq!(divided(100, &[1.0, 1.0]), [64, 36], "in steps of 32");
        assert_eq!(divided(7, &[1.0, 1.0]), [4, 3], "too few for steps");
        assert_eq!(divided(256, &[0.0, 1.0, 0.0]), [0, 256, 0]);
        assert_eq!(divided(1, &[1.0, 1.0, 1.0]).iter().sum::<usize>(), 1);
        for n in 1..300 {
            assert_eq!(divided(n, &[0.3, 0.3, 0.4]).iter().sum::<usize>(), n);
        }
    }
}
