//! After its tables have grown to their final size, the scheduler does not allocate for rebuilt or reused graphs, with
//! one or two devices. This test has its own binary, because it counts every allocation of the process.

mod counting;

use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use counting::{ALLOCATIONS, ignore_harness};
use engine::backend::*;
use engine::graph::{BufferSlice, Flags, Graph, Name, TensorId};
use engine::sched::{SchedParams, Scheduler};
use kernels::GgmlType;

/// Memory that only its own device can access.
struct Memory(&'static str);

struct Bytes {
    ty: Arc<dyn BufferType>,
    data: Vec<u8>,
}

impl BufferType for Memory {
    fn name(&self) -> &str {
        self.0
    }

    fn alignment(&self) -> usize {
        64
    }

    fn is_host(&self) -> bool {
        false
    }

    fn allocate(&self, size: usize) -> Result<Box<dyn Buffer>, BackendError> {
        Ok(Box::new(Bytes {
            ty: Arc::new(Memory(self.0)),
            data: vec![0; size],
        }))
    }
}

// SAFETY: `host_ptr` returns `None`, so no address is exposed.
unsafe impl Buffer for Bytes {
    fn buffer_type(&self) -> &Arc<dyn BufferType> {
        &self.ty
    }

    fn size(&self) -> usize {
        self.data.len()
    }

    fn host_ptr(&self) -> Option<NonNull<u8>> {
        None
    }

    fn write(&mut self, offset: usize, data: &[u8]) -> Result<(), BackendError> {
        self.data[offset..offset + data.len()].copy_from_slice(data);
        Ok(())
    }

    fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), BackendError> {
        out.copy_from_slice(&self.data[offset..offset + out.len()]);
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}

/// A device that fills every result with a constant, so that the test measures only the scheduler.
struct Filler(Arc<dyn BufferType>, DeviceKind);

impl Device for Filler {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn description(&self) -> String {
        String::new()
    }

    fn kind(&self) -> DeviceKind {
        self.1
    }

    fn memory(&self) -> (usize, usize) {
        (1 << 30, 1 << 30)
    }

    fn buffer_type(&self) -> Arc<dyn BufferType> {
        self.0.clone()
    }

    fn supports_buffer_type(&self, buffer_type: &dyn BufferType) -> bool {
        same_buffer_type(&*self.0, buffer_type)
    }

    fn supports_op(&self, _: &Graph, _: TensorId, _: &MemoryMap) -> bool {
        true
    }

    fn backend(self: Arc<Self>, _: &BackendParams) -> Result<Box<dyn Backend>, BackendError> {
        Ok(Box::new(FillerBackend(self)))
    }
}

struct FillerBackend(Arc<dyn Device>);

impl Backend for FillerBackend {
    fn device(&self) -> &Arc<dyn Device> {
        &self.0
    }

    fn prepare(
        &mut self,
        view: &GraphView<'_>,
        _: &MemoryMap,
        old: Option<Box<dyn Plan>>,
    ) -> Result<Box<dyn Plan>, BackendError> {
        let mut plan = <dyn Plan>::recycle::<Nodes>(old);
        plan.0.clear();
        plan.0.extend_from_slice(view.nodes);
        Ok(plan)
    }

    fn run(
        &mut self,
        plan: &mut dyn Plan,
        graph: &Graph,
        memory: &mut MemoryMap,
        _: &AtomicBool,
    ) -> Result<(), BackendError> {
        for &node in &plan.downcast_mut::<Nodes>("filler")?.0 {
            let home = graph.home(node).expect("the scheduler placed every node");
            memory.write(home, &[7])?;
        }
        Ok(())
    }
}

#[derive(Default)]
struct Nodes(Vec<TensorId>);

impl Plan for Nodes {}

/// Builds a chain of matmuls with one weight per layer. The weights of the first half are on the first
/// device.
fn build(graph: &mut Graph, homes: &[BufferSlice], n_tokens: usize) -> (TensorId, TensorId) {
    graph.clear();
    let x = graph.input(GgmlType::F32, [32, n_tokens, 1, 1], "x");
    let mut h = x;
    for (il, &home) in homes.iter().enumerate() {
        let name = Name {
            base: "w",
            layer: Some(il as u32),
        };
        let flags = Flags {
            weight: true,
            ..Flags::default()
        };
        let w = graph.external(GgmlType::F32, [32, 32, 1, 1], name, home, flags);
        let y = graph.mul_mat(w, h).unwrap();
        let y = graph.scale(y, 2.0, 0.0).unwrap();
        h = graph.add(y, h).unwrap();
    }
    graph.tensor_mut(h).flags.output = true;
    graph.expand(h);
    (x, h)
}

fn count(n_devices: usize) {
    let devices: Vec<Arc<dyn Device>> = [("near", DeviceKind::Gpu), ("far", DeviceKind::Cpu)][2 - n_devices..]
        .iter()
        .map(|&(name, kind)| Arc::new(Filler(Arc::new(Memory(name)), kind)) as _)
        .collect();
    let params = BackendParams::new(1);
    let backends = devices.iter().map(|d| d.clone().backend(&params).unwrap()).collect();
    let mut sched = Scheduler::new(backends, MemoryMap::default(), SchedParams::default()).unwrap();
    let homes: Vec<BufferSlice> = (0..12)
        .map(|il| {
            let device = &devices[il * n_devices / 12];
            let buffer = device.buffer_type().allocate(32 * 32 * 4).unwrap();
            BufferSlice {
                buffer: sched.register_buffer(buffer, Usage::Weights),
                offset: 0,
            }
        })
        .collect();
    let mut graph = Graph::new();
    for n_tokens in [8, 1, 8] {
        build(&mut graph, &homes, n_tokens);
        sched.reserve(&mut graph).unwrap();
    }
    let data = vec![0; 8 * 32 * 4];
    let mut out = vec![0; 8 * 32 * 4];
    let mut round = |n_tokens: usize| {
        let (x, y) = build(&mut graph, &homes, n_tokens);
        sched.alloc_graph(&mut graph).unwrap();
        for _ in 0..2 {
            sched.alloc_graph(&mut graph).unwrap();
            sched.set_input(&graph, x, &data[..n_tokens * 32 * 4]).unwrap();
            sched.compute(&graph).unwrap();
        }
        sched.read_tensor(&graph, y, 0, &mut out[..n_tokens * 32 * 4]).unwrap();
        assert_eq!(out[0], 7);
        assert_eq!(sched.n_splits(), n_devices);
    };
    // The first computation allocates staging buffers.
    round(8);
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    for n_tokens in [1, 1, 8, 3, 1, 5] {
        round(n_tokens);
    }
    let taken = ALLOCATIONS.load(Ordering::Relaxed) - before;
    assert_eq!(taken, 0, "{n_devices} devices");
}

#[test]
fn nothing_is_allocated_in_steady_state() {
    ignore_harness();
    (1..=2).for_each(count);
}
