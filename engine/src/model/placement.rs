//! Placement: assigns layers to devices and tensors to memories.

use std::collections::HashSet;
use std::sync::Arc;

use kernels::GgmlType;
use regex_lite::Regex;

use crate::backend::{self, BufferType, Device, MemoryMap, Usage, WeightStorage};
use crate::builder::{MemoryParams, MemorySpecs, RowCount};
use crate::graph::{BufferSlice, Flags, Graph, Layout, Name, ShapeError, TensorId, dense_bytes};

use super::{Consumer, TableRow};

/// Distribution of weights over several devices.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SplitMode {
    /// All weights are stored on the main device.
    None,
    /// Whole layers.
    #[default]
    Layer,
    /// Rows of each matrix over all listed devices, including the CPU if listed; all other tensors on the
    /// main device.
    Row,
}

/// Number of layers assigned to devices.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum DeviceLayers {
    /// Automatic: the maximum number of layers that fit into free memory.
    #[default]
    Auto,
    /// A fixed number of layers, counted from the last; the output counts as a layer.
    Count(usize),
}

/// Rule that places matching tensors in a specific memory.
#[derive(Clone, Debug)]
pub struct TensorOverride {
    /// Regular expression that is searched for in tensor names.
    pub pattern: Regex,
    /// Name of the buffer type.
    pub buffer_type: String,
}

impl TensorOverride {
    /// Returns the index of the memory in `types`.
    fn memory(&self, types: &[Arc<dyn BufferType>]) -> Option<usize> {
        types
            .iter()
            .position(|t| t.name().eq_ignore_ascii_case(&self.buffer_type))
    }
}

/// Placement settings. Without devices, everything is placed on the CPU.
#[derive(Clone)]
pub struct PlacementParams {
    /// Devices in addition to the CPU, in order.
    pub devices: Vec<Arc<dyn Device>>,
    /// Number of layers to offload.
    pub n_layers: DeviceLayers,
    /// Share of each device, of the layers or, with [`SplitMode::Row`], of the rows. If empty, shares are
    /// proportional to free memory.
    pub tensor_split: Vec<f32>,
    /// Distribution over several devices.
    pub split_mode: SplitMode,
    /// Index of the main device for [`SplitMode::None`] and [`SplitMode::Row`], not counting the CPU.
    pub main_device: usize,
    /// Tensor overrides; the first match takes precedence.
    pub overrides: Vec<TensorOverride>,
    /// Keep the KV cache on the device of its layer.
    pub offload_kv: bool,
    /// Run matmuls with many columns on a device even if the weights are in host memory, copying the weights
    /// each time. Weights in a CPU-only layout stay on the CPU.
    pub offload_ops: bool,
    /// Repack weights into the preferred layout of the device. If false, weights keep the layout of the file.
    pub repack: bool,
    /// Context settings that [`DeviceLayers::Auto`] reserves memory for.
    pub memory: MemoryParams,
    /// Bytes that [`DeviceLayers::Auto`] leaves free on each device.
    pub margin: usize,
    /// Return an error if [`DeviceLayers::Auto`] cannot place any layer on a device.
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

impl PlacementParams {
    /// Returns the devices without the CPU.
    pub(super) fn offload_devices(&self) -> Vec<Arc<dyn Device>> {
        let cpu = backend::default_device();
        let devices = self.devices.iter().filter(|device| device.name() != cpu.name());
        devices.cloned().collect()
    }
}

/// An error that can occur when placing a model.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum PlacementError {
    /// A setting refers to a device that does not exist.
    #[error("{setting} refers to device {index}, but only {count} devices are available")]
    NoSuchDevice {
        setting: &'static str,
        index: usize,
        /// Number of available devices.
        count: usize,
    },
    /// The shares of the devices are invalid.
    #[error("tensor_split must have at most {count} non-negative values, at least one of them positive")]
    Split {
        /// Number of available devices.
        count: usize,
    },
    /// An override names an unknown buffer type.
    #[error("unknown buffer type `{found}` in a tensor override; expected one of {}", .known.join(", "))]
    NoSuchMemory {
        found: String,
        /// Available buffer types.
        known: Vec<String>,
    },
    /// Not even a single layer fits on a device.
    #[error(
        "cannot offload a single layer to {device}: it needs {needed} bytes including compute buffers, but only {free} bytes are free, {margin} of them reserved"
    )]
    NoLayerFits {
        device: String,
        /// Bytes needed for a layer.
        needed: usize,
        /// Bytes free on the device.
        free: usize,
        /// Bytes reserved by [`PlacementParams::margin`].
        margin: usize,
    },
    /// Measuring the graphs failed.
    #[error("cannot plan the compute buffers: {reason}")]
    Unplanned { reason: String },
    /// No backend supports the tensor.
    #[error("no device supports tensor `{tensor}` of type {ty}")]
    Unusable { tensor: String, ty: GgmlType },
}

/// Placement of all layers and tensors.
#[derive(Clone)]
pub struct Placement {
    /// Devices, with the CPU last.
    pub devices: Vec<Arc<dyn Device>>,
    /// Device index of each layer, followed by the device of the output.
    pub layers: Vec<usize>,
    /// Memories in use, in the order of the devices.
    pub types: Vec<Arc<dyn BufferType>>,
    /// Parts of each row of the tensor table; a single part unless the tensor is split by rows.
    pub parts: Vec<Vec<RowPart>>,
    offload_kv: bool,
    offload_ops: bool,
    repack: bool,
}

/// Consecutive rows of a matrix in one memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowPart {
    /// Index of the memory in [`Placement::types`].
    pub memory: usize,
    /// Number of rows in the range.
    pub n_rows: usize,
    /// Row layout.
    pub layout: Layout,
}

/// Requirements of a graph that affect placement, found by a probe.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PlacementNeeds {
    /// Specifications of the KV caches and recurrent states.
    pub memory: MemorySpecs,
    /// Rows of the smallest table that is indexed by position.
    pub max_positions: Option<usize>,
    /// Rows of the smallest table that is indexed by the row or the column of a patch.
    pub max_side: Option<usize>,
    /// Like `max_positions`, for the encoder.
    pub max_encoded: Option<usize>,
    /// Width of the rows given to the encoder.
    pub frame_width: Option<usize>,
    /// For each row of the tensor table: only matmuls that can be split by rows read the tensor.
    pub divisible: Vec<bool>,
    /// For each row of the tensor table: only matmuls and row lookups read the tensor, as a whole and as
    /// their matrix or table. Such a tensor may have any layout that these ops support.
    pub read_by_rows: Vec<bool>,
    /// Width and number of the rows that the graph returns.
    pub result: [usize; 2],
    /// Number of rows of an image.
    pub row_count: RowCount,
    /// Highest number of features of media rows that a layer adds.
    pub n_features: usize,
}

impl PlacementNeeds {
    /// Adds the requirements of another graph that uses the same weights but has its own KV cache.
    pub(super) fn use_also(&mut self, other: &PlacementNeeds) {
        self.max_positions = self.max_positions.into_iter().chain(other.max_positions).min();
        self.max_side = self.max_side.into_iter().chain(other.max_side).min();
        self.max_encoded = self.max_encoded.or(other.max_encoded);
        self.frame_width = self.frame_width.or(other.frame_width);
        self.n_features = self.n_features.max(other.n_features);
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
    /// Offloaded layers; the output counts as a layer.
    pub n_offloaded: usize,
    /// Total layers; the output counts as a layer.
    pub n_layers: usize,
    /// Bytes of weights in each memory.
    pub bytes: Vec<(String, usize)>,
}

impl Placement {
    /// Computes the placement of all rows of the tensor table, with the last `n_offloaded` layers (the output
    /// counts as a layer) on the devices. [`PlacementParams::n_layers`] is ignored.
    ///
    /// # Errors
    /// Returns a [`PlacementError`] if the settings are invalid or a tensor is not supported by any device.
    pub fn new(
        params: &PlacementParams,
        n_offloaded: usize,
        rows: &[TableRow],
        n_layer: usize,
        needs: &PlacementNeeds,
    ) -> Result<Placement, PlacementError> {
        let mut devices = params.offload_devices();
        let n_devices = devices.len();
        check(params, &devices)?;
        devices.push(backend::default_device());
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
        let n_offloaded = if n_devices == 0 {
            0
        } else {
            n_offloaded.min(n_layer + 1)
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
                // Row lookups read only a few rows, so repacking does not pay off for them.
                let is_multiplied = row.consumer != Consumer::GetRows && needs.is_read_by_rows(i);
                parts.push(placement.place(row, is_multiplied, &params.overrides)?);
            }
            placement.parts.push(parts);
        }
        Ok(placement)
    }

    /// Returns the device that stores the KV cache and states of a layer.
    pub fn kv_device(&self, layer: usize) -> &Arc<dyn Device> {
        let cpu = self.devices.len() - 1;
        let device = if self.offload_kv {
            self.layers.get(layer).copied().unwrap_or(cpu)
        } else {
            cpu
        };
        &self.devices[device]
    }

    /// Returns the CPU device, which supports all ops.
    pub fn cpu(&self) -> &Arc<dyn Device> {
        self.devices
            .last()
            .expect("Placement::new appends the CPU to `devices`")
    }

    /// Returns the first device that uses this memory, or the CPU if none does.
    pub fn device_of_memory(&self, ty: &dyn BufferType) -> &Arc<dyn Device> {
        let is_its = |d: &&Arc<dyn Device>| {
            d.buffer_type().name() == ty.name()
                || (d.weight_storage().iter()).any(|storage| storage.buffer_type.name() == ty.name())
        };
        self.devices.iter().find(is_its).unwrap_or_else(|| self.cpu())
    }

    /// Returns layers and bytes by memory.
    pub fn summary(&self, rows: &[TableRow]) -> PlacementSummary {
        let cpu = self.devices.len() - 1;
        let mut bytes: Vec<_> = self.types.iter().map(|t| (t.name().to_owned(), 0)).collect();
        // A tied output shares its tensor with the embedding unless both are in different memories.
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

    /// Returns true if devices may compute matmuls whose weights are in host memory.
    pub fn offloads_ops(&self) -> bool {
        self.offload_ops
    }

    /// Returns true if weights may be repacked.
    pub fn repacks(&self) -> bool {
        self.repack
    }

    /// Returns true if the CPU weights that cannot be mapped and `context` bytes fit into free memory, or if the total
    /// memory is unknown (0).
    pub(super) fn can_repack(&self, rows: &[TableRow], context: usize, (free, total): (usize, usize)) -> bool {
        let own = self.memory_index(&*self.cpu().buffer_type());
        let of_row = |(row, parts): (&TableRow, &Vec<RowPart>)| -> usize {
            let is_allocated = |part: &&RowPart| part.memory == own && !(part.layout.is_plain() && row.can_map());
            parts.iter().filter(is_allocated).map(|part| part.bytes(row)).sum()
        };
        let needed: usize = rows.iter().zip(&self.parts).map(of_row).sum();
        total == 0 || needed == 0 || needed.saturating_add(context) <= free
    }

    /// Makes row lookups in a tied table read the repacked copy made for matmuls, where the device supports
    /// it. This avoids a second copy in the same memory. With `mmap`, tables that can be mapped need no copy.
    pub(super) fn share_tied_tables(&mut self, rows: &[TableRow], needs: &PlacementNeeds, mmap: bool) {
        for (i, row) in rows.iter().enumerate() {
            let is_tied = |other: &TableRow| (other.file_index, other.offset) == (row.file_index, row.offset);
            let is_shared = |&(j, other): &(usize, &TableRow)| j != i && is_tied(other) && !self.is_plain(j);
            if row.consumer != Consumer::GetRows || !needs.is_read_by_rows(i) || (mmap && row.can_map()) {
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

    /// Returns true if a row of the tensor table keeps the layout of the file.
    fn is_plain(&self, row: usize) -> bool {
        self.parts[row].iter().all(|part| part.layout.is_plain())
    }

    /// Splits the rows of a matrix by device shares. Returns an empty list if the tensor stays whole. A tensor stays
    /// whole if it is not a single matrix, if its layer is on the CPU, or if an override matches. It also stays whole
    /// if a device does not support a part.
    fn parts_of(&self, row: &TableRow, shares: &[(usize, f64)], overrides: &[TensorOverride]) -> Vec<RowPart> {
        let cpu = self.devices.len() - 1;
        let is_matrix = row.consumer == Consumer::MulMat && row.ne[2..] == [1, 1] && row.keeps_weights();
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

    /// Returns the device index of a tensor's layer.
    fn device_of(&self, row: &TableRow) -> usize {
        let cpu = self.devices.len() - 1;
        match (row.layer, row.consumer) {
            (Some(il), _) => self.layers.get(il as usize).copied().unwrap_or(cpu),
            // Embedding lookups read few rows, so the table does not justify device memory.
            (None, Consumer::GetRows) => cpu,
            (None, _) => self.layers.last().copied().unwrap_or(cpu),
        }
    }

    fn memory_index(&self, ty: &dyn BufferType) -> usize {
        let same = |t: &Arc<dyn BufferType>| t.name() == ty.name();
        self.types
            .iter()
            .position(same)
            .expect("`types` contains the memories of all devices")
    }

    /// Places a whole tensor on the device of its layer or on the CPU, whichever first supports the tensor.
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

    /// Returns the possible placements of a whole tensor on a device, best first. `is_multiplied` means that
    /// only matmuls read the tensor.
    fn places_on(&self, device: &dyn Device, row: &TableRow, is_multiplied: bool) -> impl Iterator<Item = RowPart> {
        let may_repack = self.repack && is_multiplied && row.keeps_weights();
        let ty = row.stored_type();
        // A GPU can multiply rows in the layout of a file that are in host memory.
        let is_alone = self.devices.len() == 1;
        let may_repack = move |layout: Layout| may_repack && (is_alone || !layout.keeps_rows(ty));
        let storages = device.weight_storage().into_iter();
        let possible = storages
            .filter(move |s| s.layout.is_plain() || (may_repack(s.layout) && s.layout.accepts(ty, row.ne)))
            .filter(move |s| computes_with(device, row, s));
        possible.map(|WeightStorage { buffer_type, layout }| RowPart {
            memory: self.memory_index(&*buffer_type),
            n_rows: row.ne[1],
            layout,
        })
    }
}

impl RowPart {
    /// Returns the shape of this part of a tensor.
    pub(super) fn shape(&self, [n, _, n2, n3]: [usize; 4]) -> [usize; 4] {
        [n, self.n_rows, n2, n3]
    }

    /// Returns the size of this part of a tensor in bytes.
    pub(super) fn bytes(&self, row: &TableRow) -> usize {
        dense_bytes(row.stored_type(), self.shape(row.ne), self.layout)
    }
}

/// Checks that every override names a known buffer type, even if no tensor matches.
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
    // With row split, the CPU has a share if it is listed.
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

/// Assigns the last `n_offloaded` layers (including the output) to the devices by share, and all others to
/// the CPU.
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
            // The first device whose cumulative share exceeds the relative position of the layer.
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

/// Returns the devices that split matrices by rows with [`SplitMode::Row`], by index, with their shares.
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

/// Row granularity of a split: kernels process several rows at once.
const ROW_STEP: usize = 32;

/// Splits `n` rows proportionally to `shares`.
fn divide(n: usize, shares: impl ExactSizeIterator<Item = f64> + Clone) -> Vec<usize> {
    let total: f64 = shares.clone().sum();
    let step = if n >= ROW_STEP * shares.len() { ROW_STEP } else { 1 };
    let (mut sum, mut begin) = (0.0, 0);
    let mut counts = Vec::with_capacity(shares.len());
    for share in shares {
        sum += share;
        // The last nonzero share ends at exactly `n`: `sum` then equals `total`.
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

/// Returns true if the device supports the op that consumes the tensor in this storage, tested on a small
/// graph.
fn computes_with(device: &dyn Device, row: &TableRow, storage: &WeightStorage) -> bool {
    // No kernel runs; an empty buffer suffices to identify the memory.
    let Ok(buffer) = storage.buffer_type.allocate(0) else {
        return false;
    };
    let mut memory = MemoryMap::default();
    let home = BufferSlice {
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
    fn repacking_memory_counts_repacked_weights_only() {
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
        let needs = PlacementNeeds {
            read_by_rows: vec![true],
            ..PlacementNeeds::default()
        };
        let placed = |repack| {
            let params = PlacementParams {
                repack,
                ..PlacementParams::default()
            };
            Placement::new(&params, 0, std::slice::from_ref(&row), 1, &needs).unwrap()
        };
        let bytes = row.bytes();
        let (repacked, plain) = (placed(true), placed(false));
        assert!(!repacked.parts[0][0].layout.is_plain());
        let has_room = |placement: &Placement, context, free| {
            placement.can_repack(std::slice::from_ref(&row), context, (free, 1 << 40))
        };
        for context in [0, 7] {
            let needed = bytes + context;
            assert!(has_room(&repacked, context, needed) && !has_room(&repacked, context, needed - 1));
            assert!(has_room(&plain, context, 0));
        }
        let unknown = (0, 0);
        assert!(repacked.can_repack(std::slice::from_ref(&row), 7, unknown));
    }

    /// Large matrices of floats are copied to memory with huge pages, unless a device may read them.
    #[test]
    fn floats_are_copied_if_only_the_cpu_multiplies() {
        let row = |ty, ne| TableRow {
            name: "w".to_owned(),
            base: "w",
            layer: None,
            ne,
            ty,
            consumer: Consumer::MulMat,
            shard: 0,
            file_index: 0,
            offset: 0,
        };
        let needs = PlacementNeeds {
            read_by_rows: vec![true],
            ..PlacementNeeds::default()
        };
        let is_copied = |row: &TableRow, devices: &[&str]| {
            let params = PlacementParams {
                devices: devices
                    .iter()
                    .map(|name| crate::backend::device(name).unwrap())
                    .collect(),
                ..PlacementParams::default()
            };
            let placement = Placement::new(&params, 0, std::slice::from_ref(row), 1, &needs).unwrap();
            !placement.parts[0][0].layout.is_plain()
        };
        for ty in [GgmlType::F32, GgmlType::F16, GgmlType::BF16] {
            assert!(is_copied(&row(ty, [256, 256, 1, 1]), &[]), "{ty}");
            assert!(!is_copied(&row(ty, [256, 256, 1, 1]), &["reference"]), "{ty}");
            assert!(!is_copied(&row(ty, [256, 8, 1, 1]), &[]), "{ty}");
            assert!(!is_copied(&row(ty, [256, 259, 1, 1]), &[]), "{ty}");
        }
        assert!(is_copied(&row(GgmlType::Q8_0, [256, 256, 1, 1]), &["reference"]));
    }

    #[test]
    fn divide_is_proportional_to_shares() {
        let divided = |n: usize, shares: &[f64]| divide(n, shares.iter().copied());
        assert_eq!(divided(256, &[1.0, 1.0]), [128, 128]);
        assert_eq!(divided(256, &[3.0, 1.0]), [192, 64]);
        assert_eq!(divided(100, &[1.0, 1.0]), [64, 36], "rounded to multiples of 32");
        assert_eq!(divided(7, &[1.0, 1.0]), [4, 3], "too few rows for steps of 32");
        assert_eq!(divided(256, &[0.0, 1.0, 0.0]), [0, 256, 0]);
        assert_eq!(divided(1, &[1.0, 1.0, 1.0]).iter().sum::<usize>(), 1);
        for n in 1..300 {
            assert_eq!(divided(n, &[0.3, 0.3, 0.4]).iter().sum::<usize>(), n);
        }
    }
}
