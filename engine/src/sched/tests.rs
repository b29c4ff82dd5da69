//! Tests of each pass, splits as text, and computation on fake devices.

mod compute;
mod inputs;
mod passes;
mod random;
mod splits;

use std::fmt::Write;
use std::sync::Arc;

use kernels::GgmlType;

use super::assign::{expand, from_memory, leftovers, upgrade_and_fill};
use super::fake::{FakeBuffer, FakeDevice};
use super::*;
use crate::backend::{BackendParams, Device, DeviceKind};
use crate::graph::{Flags, Name, Op};

/// Devices, memory with weights, and a graph over them.
pub(super) struct Lab {
    pub devices: Vec<Arc<FakeDevice>>,
    /// Initial contents of the buffers, by buffer id.
    stored: Vec<Stored>,
    pub graph: Graph,
    pub user: Vec<(TensorId, BackendId)>,
    pub op_offload: bool,
}

/// A buffer with its kind of memory, purpose, and contents.
struct Stored {
    memory: Arc<dyn BufferType>,
    usage: Usage,
    bytes: Vec<u8>,
}

pub(super) const GPU: usize = 0;
pub(super) const CPU: usize = 1;

impl Lab {
    /// Creates a lab with `gpu`, which has its own memory, and `cpu`.
    pub fn new() -> Lab {
        Lab::with(vec![
            FakeDevice::new("gpu", DeviceKind::Gpu),
            FakeDevice::new("cpu", DeviceKind::Cpu),
        ])
    }

    pub fn with(devices: Vec<FakeDevice>) -> Lab {
        Lab {
            devices: devices.into_iter().map(Arc::new).collect(),
            stored: Vec::new(),
            graph: Graph::new(),
            user: Vec::new(),
            op_offload: false,
        }
    }

    /// Adds a tensor in its own buffer on a device, filled with values that differ by byte and tensor.
    fn stored(&mut self, device: usize, ty: GgmlType, ne: [usize; 4], name: &'static str, usage: Usage) -> TensorId {
        let tensor = crate::graph::Tensor::new(ty, ne, Name::default());
        let seed = self.graph.len() as u32;
        let bytes: Vec<u8> = (0..tensor.nbytes() as u32)
            .map(|i| (i.wrapping_mul(2_654_435_761).wrapping_add(seed * 977) >> 13) as u8)
            .collect();
        let home = BufferSlice {
            buffer: BufferId(self.stored.len() as u32),
            offset: 0,
        };
        let memory = self.devices[device].memory.clone();
        self.stored.push(Stored { memory, usage, bytes });
        let flags = Flags {
            weight: usage == Usage::Weights,
            ..Flags::default()
        };
        self.graph.external(
            ty,
            ne,
            Name {
                base: name,
                layer: None,
            },
            home,
            flags,
        )
    }

    /// Allocates buffers with the initial contents.
    pub fn memory(&self) -> MemoryMap {
        let mut memory = MemoryMap::default();
        for stored in &self.stored {
            let bytes = &stored.bytes;
            let mut buffer = stored.memory.allocate(bytes.len().max(4)).unwrap();
            buffer.write(0, bytes).unwrap();
            assert!(buffer.as_any().is::<FakeBuffer>());
            memory.insert(buffer, stored.usage);
        }
        memory
    }

    /// Adds a square matrix on a device.
    pub fn weight(&mut self, device: usize, name: &'static str) -> TensorId {
        self.stored(device, GgmlType::F32, [4, 4, 1, 1], name, Usage::Weights)
    }

    pub fn experts(&mut self, device: usize, n_expert: usize, name: &'static str) -> TensorId {
        self.stored(device, GgmlType::F32, [4, 4, n_expert, 1], name, Usage::Weights)
    }

    pub fn cache(&mut self, device: usize, rows: usize, name: &'static str) -> TensorId {
        self.stored(device, GgmlType::F32, [4, rows, 1, 1], name, Usage::Any)
    }

    /// Adds an activation `[4, 2]`.
    pub fn input(&mut self, name: &'static str) -> TensorId {
        self.graph.input(GgmlType::F32, [4, 2, 1, 1], name)
    }

    pub fn name(&mut self, id: TensorId, name: &'static str) -> TensorId {
        self.graph.tensor_mut(id).name = Name {
            base: name,
            layer: None,
        };
        id
    }

    pub fn mul_mat(&mut self, w: TensorId, x: TensorId, name: &'static str) -> TensorId {
        let id = self.graph.mul_mat(w, x).unwrap();
        self.name(id, name)
    }

    pub fn add(&mut self, a: TensorId, b: TensorId, name: &'static str) -> TensorId {
        let id = self.graph.add(a, b).unwrap();
        self.name(id, name)
    }

    pub fn scale(&mut self, a: TensorId, name: &'static str) -> TensorId {
        let id = self.graph.scale(a, 2.0, 0.0).unwrap();
        self.name(id, name)
    }

    pub fn view(&mut self, a: TensorId, name: &'static str) -> TensorId {
        let ne = self.graph.tensor(a).ne;
        let id = self.graph.reshape(a, [ne[0] * ne[1], 1, 1, 1]).unwrap();
        self.name(id, name)
    }

    pub fn output(&mut self, id: TensorId) {
        self.graph.tensor_mut(id).flags.output = true;
        self.graph.expand(id);
    }

    /// Returns the assignment after the first `n` passes as `name:device`, or `-` if unassigned.
    pub fn after_pass(&self, n: usize) -> String {
        let sites: Vec<Site> = self
            .devices
            .iter()
            .map(|d| Site {
                device: d.clone(),
                memory: d.memory.clone(),
            })
            .collect();
        let mut of = vec![None; self.graph.len()];
        for &(id, b) in &self.user {
            of[id.index()] = Some(b);
        }
        let user = of.clone();
        let mut a = Assigner {
            user: &user,
            graph: &self.graph,
            memory: &self.memory(),
            sites: &sites,
            op_offload: self.op_offload,
            of: &mut of,
        };
        from_memory(&mut a).unwrap();
        if n >= 2 {
            expand(&mut a);
        }
        if n >= 3 {
            upgrade_and_fill(&mut a);
        }
        if n >= 4 {
            leftovers(&mut a).unwrap();
        }
        let mut text = String::new();
        for &id in self.graph.leafs().iter().chain(self.graph.nodes()) {
            let device = of[id.index()].map_or("-", |b| self.devices[b.index()].name);
            write!(text, " {}:{device}", self.graph.tensor(id).name).unwrap();
        }
        text.trim_start().to_owned()
    }

    pub fn params() -> BackendParams {
        BackendParams::new(1)
    }

    pub fn scheduler_with(&self, params: SchedParams) -> Scheduler {
        let backends = self
            .devices
            .iter()
            .map(|d| d.clone().backend(&Lab::params()).unwrap())
            .collect();
        let mut s = Scheduler::new(backends, self.memory(), params).unwrap();
        for &(id, b) in &self.user {
            s.set_backend(id, b).unwrap();
        }
        s
    }

    pub fn scheduler(&self) -> Scheduler {
        self.scheduler_with(SchedParams {
            op_offload: self.op_offload,
        })
    }

    /// Returns the splits as text.
    pub fn splits(&mut self) -> String {
        let mut s = self.scheduler();
        s.alloc_graph(&mut self.graph).unwrap();
        s.describe(&self.graph)
    }

    /// Fills every input with bytes derived from its name, computes the graph, and reads `id`.
    pub fn compute(&mut self, s: &mut Scheduler, id: TensorId) -> Vec<u8> {
        s.alloc_graph(&mut self.graph).unwrap();
        fill_inputs(s, &self.graph);
        s.compute(&self.graph).unwrap();
        read(s, &self.graph, id)
    }
}

/// Fills every input of a prepared graph with bytes derived from its name.
pub(super) fn fill_inputs(s: &mut Scheduler, graph: &Graph) {
    for &leaf in graph.leafs() {
        let tensor = graph.tensor(leaf);
        if tensor.flags.input {
            let name = tensor.name.base.as_bytes();
            let byte = |i: usize| (i as u8).wrapping_mul(37) ^ name[i % name.len()];
            let data: Vec<u8> = (0..tensor.nbytes()).map(byte).collect();
            s.set_input(graph, leaf, &data).unwrap();
        }
    }
}

pub(super) fn read(s: &mut Scheduler, graph: &Graph, id: TensorId) -> Vec<u8> {
    let mut out = vec![0; graph.tensor(id).nbytes()];
    s.read_tensor(graph, id, 0, &mut out).unwrap();
    out
}

/// Selects the nodes without one of these names.
pub(super) fn not_named(names: &'static [&'static str]) -> super::fake::NodeFilter {
    Box::new(move |graph, id| !names.contains(&graph.tensor(id).name.base))
}

pub(super) fn is_mul_mat(graph: &Graph, id: TensorId) -> bool {
    matches!(graph.tensor(id).op, Op::MulMat | Op::MulMatId)
}
