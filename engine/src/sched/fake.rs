//! Fake devices for tests: memory that counts allocations, and backends that compute a simple but exact
//! result for every op. A wrong order, a missing copy, or overlapping memory changes the result.

use std::any::Any;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::backend::*;
use crate::graph::{Graph, Op, TensorId};

/// A kind of memory, which is host memory if `host` is set.
pub struct FakeType {
    pub name: &'static str,
    pub alignment: usize,
    pub max_size: usize,
    pub host: bool,
    /// Total bytes allocated, including freed memory.
    pub allocated: Arc<AtomicUsize>,
    pub n_buffers: Arc<AtomicUsize>,
    /// Bytes written to buffers.
    pub written: Arc<AtomicUsize>,
    /// Maximum size of a buffer.
    pub limit: usize,
}

impl FakeType {
    pub fn new(name: &'static str, alignment: usize, max_size: usize) -> FakeType {
        FakeType {
            name,
            alignment,
            max_size,
            host: false,
            allocated: Arc::default(),
            n_buffers: Arc::default(),
            written: Arc::default(),
            limit: 1 << 30,
        }
    }
}

impl BufferType for FakeType {
    fn name(&self) -> &str {
        self.name
    }

    fn alignment(&self) -> usize {
        self.alignment
    }

    fn max_size(&self) -> usize {
        self.max_size
    }

    fn is_host(&self) -> bool {
        self.host
    }

    fn allocate(&self, size: usize) -> Result<Box<dyn Buffer>, BackendError> {
        if size > self.limit {
            return Err(BackendError::OutOfMemory {
                buffer_type: self.name.to_owned(),
                bytes: size,
            });
        }
        self.allocated.fetch_add(size, Ordering::Relaxed);
        self.n_buffers.fetch_add(1, Ordering::Relaxed);
        Ok(Box::new(FakeBuffer {
            ty: Arc::new(FakeType {
                allocated: self.allocated.clone(),
                n_buffers: self.n_buffers.clone(),
                written: self.written.clone(),
                ..*self
            }),
            written: self.written.clone(),
            memory: host::host_buffer_type().allocate(size)?,
        }))
    }
}

pub struct FakeBuffer {
    ty: Arc<dyn BufferType>,
    written: Arc<AtomicUsize>,
    memory: Box<dyn Buffer>,
}

// SAFETY: all methods forward to another `Buffer`, which upholds the contract.
unsafe impl Buffer for FakeBuffer {
    fn buffer_type(&self) -> &Arc<dyn BufferType> {
        &self.ty
    }

    fn size(&self) -> usize {
        self.memory.size()
    }

    fn host_ptr(&self) -> Option<NonNull<u8>> {
        if self.ty.is_host() {
            self.memory.host_ptr()
        } else {
            None
        }
    }

    fn write(&mut self, offset: usize, data: &[u8]) -> Result<(), BackendError> {
        self.written.fetch_add(data.len(), Ordering::Relaxed);
        self.memory.write(offset, data)
    }

    fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), BackendError> {
        self.memory.read(offset, out)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}

/// Predicate on the nodes of a graph.
pub type NodeFilter = Box<dyn Fn(&Graph, TensorId) -> bool + Send + Sync>;

/// Callback for computed nodes.
pub type Listener = Arc<dyn Fn(&Graph, TensorId) + Send + Sync>;

/// A device with one [`FakeType`] and its backend.
pub struct FakeDevice {
    pub name: &'static str,
    pub kind: DeviceKind,
    pub memory: Arc<dyn BufferType>,
    /// Names of other memory that the backend can read.
    pub reads: Vec<&'static str>,
    pub supports: NodeFilter,
    pub offloads: NodeFilter,
    /// Log of the backend's runs, shared by the devices of a test.
    pub log: Arc<Mutex<Vec<String>>>,
    /// Number of plans prepared.
    pub n_prepared: Arc<AtomicUsize>,
    /// Bytes enqueued for writing; `None` disables the queue.
    pub queued: Option<Arc<AtomicUsize>>,
    /// Called after each computed node.
    pub computed: Listener,
}

impl FakeDevice {
    /// Creates a device that supports every op, with its own memory of the same name.
    pub fn new(name: &'static str, kind: DeviceKind) -> FakeDevice {
        let mut memory = FakeType::new(name, 32, usize::MAX);
        memory.host = kind != DeviceKind::Gpu;
        FakeDevice {
            name,
            kind,
            memory: Arc::new(memory),
            reads: Vec::new(),
            supports: Box::new(|_, _| true),
            offloads: Box::new(|_, _| false),
            log: Arc::default(),
            n_prepared: Arc::default(),
            queued: None,
            computed: Arc::new(|_, _| {}),
        }
    }
}

impl Device for FakeDevice {
    fn name(&self) -> &str {
        self.name
    }

    fn description(&self) -> String {
        format!("fake {}", self.name)
    }

    fn kind(&self) -> DeviceKind {
        self.kind
    }

    fn memory(&self) -> (usize, usize) {
        (1 << 30, 1 << 30)
    }

    fn buffer_type(&self) -> Arc<dyn BufferType> {
        self.memory.clone()
    }

    fn supports_buffer_type(&self, buffer_type: &dyn BufferType) -> bool {
        same_buffer_type(&*self.memory, buffer_type) || self.reads.contains(&buffer_type.name())
    }

    fn supports_op(&self, graph: &Graph, node: TensorId, _: &MemoryMap) -> bool {
        (self.supports)(graph, node)
    }

    fn offload_op(&self, graph: &Graph, node: TensorId) -> bool {
        (self.offloads)(graph, node)
    }

    fn backend(self: Arc<Self>, _: &BackendParams) -> Result<Box<dyn Backend>, BackendError> {
        Ok(Box::new(FakeBackend {
            log: self.log.clone(),
            n_prepared: self.n_prepared.clone(),
            queued: self.queued.clone(),
            computed: self.computed.clone(),
            device: self,
            operand: Vec::new(),
            result: Vec::new(),
        }))
    }
}

pub struct FakeBackend {
    device: Arc<dyn Device>,
    log: Arc<Mutex<Vec<String>>>,
    n_prepared: Arc<AtomicUsize>,
    queued: Option<Arc<AtomicUsize>>,
    computed: Listener,
    operand: Vec<u8>,
    result: Vec<u8>,
}

impl FakeBackend {
    /// Computes a node. Every word of the result is the sum of the operand words at the same position
    /// (operands repeat), with different factors. `SetRows` writes its first operand to the start of its
    /// destination.
    fn compute_node(&mut self, graph: &Graph, node: TensorId, memory: &mut MemoryMap) -> Result<(), BackendError> {
        let tensor = graph.tensor(node);
        let n_sources = if tensor.op == Op::SetRows {
            1
        } else {
            tensor.sources().count()
        };
        let n_bytes = match tensor.op {
            Op::SetRows => graph.tensor(tensor.source(0)).nbytes().min(tensor.nbytes()),
            _ => tensor.nbytes(),
        };
        self.result.clear();
        self.result.resize(n_bytes, 0);
        for (s, source) in tensor.sources().take(n_sources).enumerate() {
            let home = graph.home(source).expect("operands are placed before run");
            let buffer = memory.get(home.buffer)?;
            assert!(
                self.device.supports_buffer_type(&**buffer.buffer_type()),
                "{}: {} is in {} memory",
                self.device.name(),
                graph.tensor(source).name,
                buffer.buffer_type().name()
            );
            self.operand.resize(graph.tensor(source).nbytes(), 0);
            buffer.read(home.offset, &mut self.operand)?;
            let operand = bytemuck::cast_slice::<u8, u32>(&self.operand);
            if operand.is_empty() {
                continue;
            }
            for (i, out) in bytemuck::cast_slice_mut::<u8, u32>(&mut self.result)
                .iter_mut()
                .enumerate()
            {
                let x = operand[i % operand.len()].wrapping_mul(2 * s as u32 + 3);
                *out = out.rotate_left(7).wrapping_add(x ^ i as u32);
            }
        }
        let home = graph.home(node).expect("nodes are placed before run");
        memory.write(home, &self.result)
    }
}

impl Backend for FakeBackend {
    fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    fn prepare(
        &mut self,
        view: &GraphView<'_>,
        _: &MemoryMap,
        old: Option<Box<dyn Plan>>,
    ) -> Result<Box<dyn Plan>, BackendError> {
        self.n_prepared.fetch_add(1, Ordering::Relaxed);
        NodePlan::prepare(view, old, |_| Ok(()))
    }

    fn run(
        &mut self,
        plan: &mut dyn Plan,
        graph: &Graph,
        memory: &mut MemoryMap,
        cancel: &AtomicBool,
    ) -> Result<(), BackendError> {
        let mut computed = Vec::new();
        NodePlan::run(plan, "fake", graph, cancel, |node| {
            computed.push(node);
            self.compute_node(graph, node, memory)?;
            (self.computed)(graph, node);
            Ok(())
        })?;
        if let Some(&first) = computed.first() {
            let (device, name) = (self.device.name(), graph.tensor(first).name);
            let entry = format!("{device}: {} from {name}", computed.len());
            self.log.lock().unwrap().push(entry);
        }
        Ok(())
    }

    fn write_async(&mut self, to: &mut dyn Buffer, offset: usize, data: &[u8]) -> Result<bool, BackendError> {
        let Some(queued) = &self.queued else {
            return Ok(false);
        };
        queued.fetch_add(data.len(), Ordering::Relaxed);
        to.write(offset, data)?;
        Ok(true)
    }

    fn read_async(
        &mut self,
        from: &dyn Buffer,
        offset: usize,
        len: usize,
    ) -> Result<Option<Box<dyn PendingRead>>, BackendError> {
        if self.queued.is_none() {
            return Ok(None);
        }
        let mut bytes = vec![0; len];
        from.read(offset, &mut bytes)?;
        Ok(Some(Box::new(FakeRead(bytes))))
    }
}

struct FakeRead(Vec<u8>);

impl PendingRead for FakeRead {
    fn wait(self: Box<Self>, out: &mut [u8]) -> Result<(), BackendError> {
        out.copy_from_slice(&self.0);
        Ok(())
    }
}
