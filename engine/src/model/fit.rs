//! Estimates, before loading, how many layers fit on the devices and how much memory a context needs in
//! addition to the weights.

use std::sync::Arc;

use crate::backend::{Device, Usage};
use crate::builder::{
    Adaptation, BuildError, BuildGraph, BuildParams, BuildTables, Builder, CacheView, GraphPart, HiddenRows, Inputs,
    MemoryParams, MemorySpecs, WeightLeaf,
};
use crate::graph::{BufferSlice, Graph};
use crate::sched::{Measure, SchedError};

use super::leaf::leaf_without_data;
use super::params::LoadParams;
use super::placement::{
    DeviceLayers, Placement, PlacementError, PlacementNeeds, PlacementParams, assign_layers, row_shares,
};
use super::{Architecture, Base, Consumer, TableRow};

/// Size in bytes that compute buffers rarely exceed.
const MAX_COMPUTE: usize = 1 << 30;

/// Declared model whose weights are not yet placed.
#[derive(Clone, Copy)]
pub(super) struct ModelOutline<'a> {
    pub arch: &'static Architecture,
    pub base: &'a Base,
    pub graph: &'a dyn BuildGraph,
    pub rows: &'a [TableRow],
    pub needs: &'a PlacementNeeds,
}

impl<'a> ModelOutline<'a> {
    /// Creates an outline from the declaration of an architecture and the requirements of its graph.
    pub fn new(
        arch: &'static Architecture,
        base: &'a Base,
        graph: &'a dyn BuildGraph,
        rows: &'a [TableRow],
        needs: &'a PlacementNeeds,
    ) -> ModelOutline<'a> {
        ModelOutline {
            arch,
            base,
            graph,
            rows,
            needs,
        }
    }

    /// Returns the caches and states of a context; empty for bidirectional models, which attend to the batch
    /// itself.
    pub fn cache_specs(&self) -> MemorySpecs {
        if self.is_bidirectional() {
            MemorySpecs::default()
        } else {
            self.needs.memory.clone()
        }
    }

    /// Returns the context settings to plan for. Bidirectional models compute a batch in a single ubatch.
    pub fn memory(&self, params: &PlacementParams) -> MemoryParams {
        let memory = params.memory.resolved(self.base.n_ctx_train());
        if self.is_bidirectional() {
            MemoryParams {
                n_ubatch: memory.n_batch,
                ..memory
            }
        } else {
            memory
        }
    }

    fn is_bidirectional(&self) -> bool {
        self.arch.bidirectional || !self.base.causal
    }

    /// Decides the placement of all layers and tensors.
    pub fn place(&self, params: &LoadParams) -> Result<Placement, PlacementError> {
        let mut placed = params.placement.clone();
        placed.memory = self.memory(&placed);
        let needs = PlacementNeeds {
            memory: self.cache_specs(),
            ..self.needs.clone()
        };
        let devices = placed.offload_devices();
        match placed.n_layers {
            DeviceLayers::Count(n) => self.place_layers(&placed, n, params.mmap, &needs),
            DeviceLayers::Auto if devices.is_empty() => self.place_layers(&placed, 0, params.mmap, &needs),
            DeviceLayers::Auto => self.place_most(&placed, &devices, params.mmap, &needs),
        }
    }

    /// Places as many layers on the devices as fit. The compute buffers depend on the assignment of layers, so the
    /// search repeats with fewer layers until the buffers also fit.
    fn place_most(
        &self,
        params: &PlacementParams,
        devices: &[Arc<dyn Device>],
        mmap: bool,
        needs: &PlacementNeeds,
    ) -> Result<Placement, PlacementError> {
        let mut reserved = vec![0; devices.len()];
        loop {
            let n = layers_that_fit(params, devices, self.rows, self.base.n_layer(), needs, &reserved);
            let best = self.place_layers(params, n, mmap, needs)?;
            let needed = self.compute_bytes(&best, params.memory)?;
            let of_device = |device: &Arc<dyn Device>| {
                let its = needed.iter().find(|(name, _)| name == device.buffer_type().name());
                its.map_or(0, |(_, bytes)| *bytes)
            };
            let needed: Vec<usize> = devices.iter().map(of_device).collect();
            tracing::debug!(n_layers = n, compute_bytes = ?needed, "tried a placement");
            if n == 0 && params.needs_layer {
                return Err(self.no_layer_fits(params, mmap, needs)?);
            }
            if n == 0 && params.overrides.is_empty() {
                // If not even one layer fits, other allocations on the device would likely fail, so use only
                // the CPU.
                let on_cpu = PlacementParams {
                    devices: Vec::new(),
                    ..params.clone()
                };
                return self.place_layers(&on_cpu, 0, mmap, needs);
            }
            let fits = needed
                .iter()
                .zip(&reserved)
                .all(|(needed, reserved)| needed <= reserved);
            if n == 0 || fits {
                return Ok(best);
            }
            for (reserved, needed) in reserved.iter_mut().zip(needed) {
                *reserved = needed.max(*reserved);
            }
        }
    }

    /// Builds the error that reports the memory needed by a single layer on the first device.
    fn no_layer_fits(
        &self,
        params: &PlacementParams,
        mmap: bool,
        needs: &PlacementNeeds,
    ) -> Result<PlacementError, PlacementError> {
        let placement = self.place_layers(params, 1, mmap, needs)?;
        let device = &placement.devices[placement.layers.last().copied().unwrap_or(0)];
        let name = device.buffer_type().name().to_owned();
        let bytes = placement.summary(self.rows).bytes.into_iter();
        let bytes = bytes.chain(self.compute_bytes(&placement, params.memory)?);
        Ok(PlacementError::NoLayerFits {
            needed: bytes
                .filter(|(memory, _)| *memory == name)
                .map(|(_, bytes)| bytes)
                .sum(),
            free: device.memory().0,
            margin: params.margin,
            device: name,
        })
    }

    /// Creates a placement with `n` layers on the devices. Weights keep the layout of the file if memory does not
    /// suffice for repacked weights, caches, and compute buffers. Otherwise, the system could end the process.
    fn place_layers(
        &self,
        params: &PlacementParams,
        n: usize,
        mmap: bool,
        needs: &PlacementNeeds,
    ) -> Result<Placement, PlacementError> {
        let n_layer = self.base.n_layer();
        let mut best = Placement::new(params, n, self.rows, n_layer, needs)?;
        best.share_tied_tables(self.rows, needs, mmap);
        if !mmap || self.can_repack(&best, params, needs)? {
            return Ok(best);
        }
        // Mapped pages are backed by the file and need no additional memory.
        let plain = PlacementParams {
            repack: false,
            ..params.clone()
        };
        Placement::new(&plain, n, self.rows, n_layer, needs)
    }

    /// Returns true if the memory of the CPU holds the repacked weights and the context.
    fn can_repack(
        &self,
        placement: &Placement,
        params: &PlacementParams,
        needs: &PlacementNeeds,
    ) -> Result<bool, PlacementError> {
        let (cpu, memory) = (placement.cpu(), params.memory);
        let kv = needs.memory.kv.iter().map(|s| (s.layer, memory.kv_bytes(s)));
        let cross = needs.memory.cross.iter().map(|s| (s.layer, memory.cross_bytes(s)));
        let states = needs.memory.states.iter().map(|s| (s.layer, memory.state_bytes(s)));
        let caches = kv.chain(cross).chain(states).fold(0usize, |sum, (layer, bytes)| {
            let is_here = placement.kv_device(layer).name() == cpu.name();
            sum.saturating_add(if is_here { bytes } else { 0 })
        });
        // A context that does not fit alone is reduced or rejected later.
        let caches = if caches <= cpu.memory().0 { caches } else { 0 };
        let fits = |buffers| placement.can_repack(self.rows, caches.saturating_add(buffers), cpu.memory());
        // The exact size of the buffers takes time, and is rarely needed.
        if fits(MAX_COMPUTE) || !fits(0) {
            return Ok(fits(0));
        }
        let buffers = self.compute_bytes(placement, memory)?;
        let ty = cpu.buffer_type();
        let of_cpu = buffers.iter().filter(|(name, _)| name == ty.name());
        Ok(fits(of_cpu.map(|(_, bytes)| bytes).sum()))
    }

    /// Returns the size in bytes of the compute buffers by memory, for the largest graphs of a context with
    /// these settings.
    pub fn compute_bytes(
        &self,
        placement: &Placement,
        memory: MemoryParams,
    ) -> Result<Vec<(String, usize)>, PlacementError> {
        let measured = self.measured(placement, memory);
        measured.map_err(|reason| PlacementError::Unplanned { reason })
    }

    fn measured(&self, placement: &Placement, memory: MemoryParams) -> Result<Vec<(String, usize)>, String> {
        let text = |e: SchedError| e.to_string();
        // Upper bound on positions, so that tensor shapes stay valid.
        let memory = MemoryParams {
            n_ctx: memory.n_ctx.min(i32::MAX as usize),
            ..memory
        };
        let mut measure = Measure::new(&placement.devices, placement.offloads_ops());
        // The first buffers represent the weight memories, in placement order.
        for ty in &placement.types {
            measure.register(&**ty, Usage::Weights).map_err(text)?;
        }
        let leafs = self.rows.iter().zip(&placement.parts);
        let leafs: Vec<WeightLeaf> = leafs.map(|(row, parts)| leaf_without_data(row, parts)).collect();
        let view = self.view(placement, memory, &mut measure).map_err(text)?;
        let (mut graph, mut tables, mut inputs) = (Graph::new(), BuildTables::default(), Inputs::default());
        for params in self.largest_graphs(memory) {
            let over_batch = self.is_bidirectional() || params.part == GraphPart::Encoder;
            let view = if over_batch { None } else { Some(&view) };
            let places = (&mut graph, &mut tables, &mut inputs);
            self.build(places, &leafs, params, view).map_err(|e| e.to_string())?;
            measure.add(&mut graph).map_err(text)?;
        }
        Ok(measure.bytes())
    }

    /// Creates a cache view whose tensors are in empty buffers.
    fn view(
        &self,
        placement: &Placement,
        memory: MemoryParams,
        measure: &mut Measure,
    ) -> Result<CacheView, SchedError> {
        let cache_specs = self.cache_specs();
        let (mut view, _) = memory.cache_view(&cache_specs);
        let mut home = |layer: usize| -> Result<BufferSlice, SchedError> {
            let ty = placement.kv_device(layer).buffer_type();
            let buffer = measure.register(&*ty, Usage::Any)?;
            Ok(BufferSlice { buffer, offset: 0 })
        };
        for (slot, spec) in view.slots.iter_mut().zip(&cache_specs.kv) {
            slot.k = home(spec.layer)?;
            slot.v = slot.k;
        }
        for (slot, spec) in view.cross.iter_mut().zip(&cache_specs.cross) {
            slot.k = home(spec.layer)?;
            slot.v = slot.k;
        }
        for (slot, spec) in view.states.iter_mut().zip(&cache_specs.states) {
            slot.home = home(spec.layer)?;
        }
        Ok(view)
    }

    /// Returns the graphs that a context reserves memory for.
    fn largest_graphs(&self, memory: MemoryParams) -> Vec<BuildParams> {
        if self.arch.media.is_some() {
            return vec![self.arch.build_params(self.base, self.graph)];
        }
        let n_encoded = if self.arch.encoder { memory.n_encode_max() } else { 0 };
        let decoder = BuildParams {
            n_seq_max: memory.n_seq_max,
            hidden: if memory.hidden {
                HiddenRows::All
            } else {
                HiddenRows::None
            },
            n_encoded,
            n_ctx: memory.n_ctx,
            ..self.arch.build_params(self.base, self.graph)
        };
        let encoder = BuildParams {
            n_tokens: n_encoded,
            n_outputs: n_encoded,
            part: GraphPart::Encoder,
            hidden: HiddenRows::None,
            causal: false,
            n_encoded: 0,
            ..decoder
        };
        let mut graphs = Vec::new();
        if self.arch.encoder {
            graphs.push(encoder);
        }
        if !self.cache_specs().cross.is_empty() {
            graphs.push(BuildParams {
                n_tokens: n_encoded,
                n_outputs: n_encoded,
                part: GraphPart::Cross,
                hidden: HiddenRows::None,
                ..decoder
            });
        }
        for (n_tokens, n_outputs) in memory.largest_graphs() {
            graphs.push(BuildParams {
                n_tokens,
                n_outputs: n_outputs.max(1),
                ..decoder
            });
        }
        graphs
    }

    fn build(
        &self,
        (graph, tables, inputs): (&mut Graph, &mut BuildTables, &mut Inputs),
        leafs: &[WeightLeaf],
        params: BuildParams,
        view: Option<&CacheView>,
    ) -> Result<(), BuildError> {
        let unadapted = Adaptation::default();
        let b = match view {
            Some(view) => Builder::over_cells(graph, leafs, tables, inputs, params, view),
            None => Builder::over_batch(graph, leafs, tables, inputs, params),
        };
        let mut b = b.adapted(&unadapted);
        match params.part {
            GraphPart::Encoder => _ = self.graph.encode(&mut b).map(|result| b.output(result)),
            GraphPart::Cross => b.store_cross(self.graph),
            GraphPart::Graph | GraphPart::Mtp => _ = b.whole(self.arch.results(), self.graph),
        }
        b.finish()
    }
}

/// Returns the number of layers, counted from the last, that fit into the free memory of the devices. Their KV cache
/// and `compute` bytes of compute buffers per device are included.
pub(super) fn layers_that_fit(
    params: &PlacementParams,
    devices: &[Arc<dyn Device>],
    rows: &[TableRow],
    n_layer: usize,
    needs: &PlacementNeeds,
    compute: &[usize],
) -> usize {
    let shares = row_shares(params, devices);
    // `devices` excludes the CPU.
    let all: f64 = row_shares(params, &params.devices).iter().map(|(_, s)| s).sum();
    let mut sizes = vec![0usize; n_layer + 1];
    let mut divided = vec![0usize; n_layer + 1];
    for (i, row) in rows.iter().enumerate() {
        let layer = match row.layer {
            // The MTP layer is placed with the output.
            Some(il) if (il as usize) <= n_layer => il as usize,
            None if row.consumer != Consumer::GetRows => n_layer,
            _ => continue,
        };
        let is_divided = !shares.is_empty() && needs.divisible.get(i) == Some(&true);
        let sum = if is_divided { &mut divided } else { &mut sizes };
        sum[layer] += row.bytes();
    }
    if params.offload_kv {
        let states = (needs.memory.states.iter()).map(|s| (s.layer, params.memory.state_bytes(s)));
        let kv = (needs.memory.kv.iter()).map(|s| (s.layer, params.memory.kv_bytes(s)));
        let cross = (needs.memory.cross.iter()).map(|s| (s.layer, params.memory.cross_bytes(s)));
        for (layer, bytes) in kv.chain(cross).chain(states).filter(|&(layer, _)| layer < n_layer) {
            sizes[layer] = sizes[layer].saturating_add(bytes);
        }
    }
    let fits = |n: usize| {
        let mut used = vec![0usize; devices.len() + 1];
        for (il, d) in assign_layers(params, devices, n_layer, n).into_iter().enumerate() {
            used[d] = used[d].saturating_add(sizes[il]);
            // Layers on the CPU are not divided.
            if d == devices.len() {
                continue;
            }
            for &(device, share) in &shares {
                used[device] = used[device].saturating_add((share / all * divided[il] as f64) as usize);
            }
        }
        devices.iter().zip(used).enumerate().all(|(i, (device, used))| {
            let reserved = params.margin.saturating_add(compute.get(i).copied().unwrap_or(0));
            used.saturating_add(reserved) <= device.memory().0 || used == 0
        })
    };
    (0..=n_layer + 1).rev().find(|&n| fits(n)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use kernels::GgmlType;

    use crate::backend::DeviceKind;
    use crate::builder::{KeyPosition, KvSpec, StateSpec};
    use crate::graph::Window;
    use crate::sched::fake::FakeDevice;

    use super::*;

    const N_LAYER: usize = 8;

    /// Returns the number of weightless layers (including the output) that fit into a 1 GiB device.
    fn fitting(memory: MemoryParams, layer: impl Fn(usize) -> (Option<KvSpec>, Option<StateSpec>)) -> usize {
        let gpu: Arc<dyn Device> = Arc::new(FakeDevice::new("gpu", DeviceKind::Gpu));
        assert_eq!(gpu.memory().0, 1 << 30);
        let params = PlacementParams {
            devices: vec![gpu.clone()],
            margin: 0,
            memory,
            ..PlacementParams::default()
        };
        let (kv, states): (Vec<_>, Vec<_>) = (0..N_LAYER).map(layer).unzip();
        let needs = PlacementNeeds {
            memory: MemorySpecs {
                kv: kv.into_iter().flatten().collect(),
                cross: Vec::new(),
                states: states.into_iter().flatten().collect(),
            },
            ..PlacementNeeds::default()
        };
        layers_that_fit(&params, &[gpu], &[], N_LAYER, &needs, &[]) - 1
    }

    fn attention(layer: usize, window: Window) -> KvSpec {
        KvSpec {
            layer,
            k_row: 1024,
            v_row: 1024,
            v_in_k: 0,
            n_head_kv: 8,
            window,
            compressed: None,
            key_position: KeyPosition::Free,
        }
    }

    #[test]
    fn fit_depends_on_kv_cache_type() {
        // K and V each have 256 Mi elements per layer.
        let with = |type_k, type_v| {
            let memory = MemoryParams {
                n_ctx: 1 << 17,
                type_k,
                type_v,
                ..MemoryParams::default()
            };
            fitting(memory, |il| (Some(attention(il, Window::None)), None))
        };
        assert_eq!(with(GgmlType::F16, GgmlType::F16), 2);
        assert_eq!(with(GgmlType::F32, GgmlType::F32), 1);
        assert_eq!(with(GgmlType::Q8_0, GgmlType::Q8_0), 3);
        assert_eq!(with(GgmlType::Q4_0, GgmlType::Q8_0), 4, "208 MiB each");
    }

    #[test]
    fn fit_depends_on_windows_and_states() {
        let memory = MemoryParams {
            n_ctx: 1 << 17,
            ..MemoryParams::default()
        };
        let windowed = |il| (Some(attention(il, Window::Sliding(512))), None);
        assert_eq!(fitting(memory, windowed), N_LAYER);
        let one_in_four = |il: usize| match il % 4 {
            3 => (Some(attention(il, Window::None)), None),
            _ => windowed(il),
        };
        // A full-attention layer takes half of the memory; the windowed layers between take little.
        assert_eq!(fitting(memory, one_in_four), 4);
        let state = |layer| StateSpec { layer, row: 1 << 24 };
        let recurrent = |il| (None, Some(state(il)));
        // Each sequence has two recurrent state cells of 64 MiB.
        assert_eq!(fitting(memory, recurrent), N_LAYER);
        let many = MemoryParams { n_seq_max: 4, ..memory };
        assert_eq!(fitting(many, recurrent), 2);
        let far = MemoryParams {
            n_rollback: 2,
            ..memory
        };
        assert_eq!(fitting(far, recurrent), 4);
    }
}
