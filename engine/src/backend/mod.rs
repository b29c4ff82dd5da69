//! Where tensors live and what computes them: registry -> device -> buffer type -> buffer, and device -> backend.
//!
//! A backend is a small trait with documented defaults; nothing above this module names a concrete one except
//! [`registries`], the one list of compiled-in backends.

pub mod cpu;
pub mod host;
mod plan;
pub mod reference;
mod rules;

use std::any::Any;
use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, LazyLock};

use crate::graph::{BufferId, Graph, Home, Tensor, TensorId};

pub use cpu::ThreadPool;
use host::HostBytes;
pub use host::HostMemory;
pub use plan::{GraphView, Plan};

/// What a backend can fail with.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    /// The memory could not be had.
    #[error("{buffer_type}: cannot allocate {bytes} bytes")]
    OutOfMemory {
        /// Name of the buffer type.
        buffer_type: String,
        /// Bytes asked for.
        bytes: usize,
    },
    /// A read or write reaches beyond its buffer.
    #[error("{buffer_type}: access to bytes {offset}..{} of a buffer of {size} bytes", .offset + .len)]
    OutOfBounds {
        /// Name of the buffer type.
        buffer_type: String,
        /// First byte.
        offset: usize,
        /// Number of bytes.
        len: usize,
        /// Size of the buffer.
        size: usize,
    },
    /// No compiled-in backend computes this node.
    #[error("no backend computes {op} ({node}) on a tensor of type {ty}")]
    Unsupported {
        /// Name of the op.
        op: &'static str,
        /// Name of the node.
        node: String,
        /// Type of the first operand.
        ty: kernels::GgmlType,
    },
    /// A mapped file is shorter than it was.
    #[error("{}: the file was changed while in use: it had {expected} bytes, now it has {found}", .path.display())]
    Shrunk {
        /// The file.
        path: std::path::PathBuf,
        /// Bytes when it was mapped.
        expected: usize,
        /// Bytes now.
        found: u64,
    },
    /// The caller asked to stop.
    #[error("cancelled")]
    Cancelled,
    /// A plan was run on a graph or in memory that it was not prepared for, or that changed since.
    #[error("{device}: the graph or its memory is not what the plan was prepared for")]
    StalePlan {
        /// Name of the device.
        device: String,
    },
    /// Anything else a device reports.
    #[error("{device}: {message}")]
    Device {
        /// Name of the device.
        device: String,
        /// What it said.
        message: String,
    },
}

/// What a buffer is used for; the scheduler places ops near buffers of weights.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Usage {
    /// No particular use.
    #[default]
    Any,
    /// Model weights.
    Weights,
    /// Intermediate results of a graph.
    Compute,
}

/// A kind of memory. Two are the same if their names are.
pub trait BufferType: Send + Sync {
    /// Unique name, such as `CPU`.
    fn name(&self) -> &str;

    /// Every tensor's offset is a multiple of this (a power of two, in bytes).
    fn alignment(&self) -> usize;

    /// Largest single buffer in bytes.
    fn max_size(&self) -> usize {
        usize::MAX
    }

    /// Bytes to set aside for a tensor; at least [`Tensor::nbytes`].
    fn alloc_size(&self, tensor: &Tensor) -> usize {
        tensor.nbytes()
    }

    /// True if the CPU may use the memory by its address.
    fn is_host(&self) -> bool;

    /// A zeroed buffer of `size` bytes.
    fn allocate(&self, size: usize) -> Result<Arc<dyn Buffer>, BackendError>;
}

impl fmt::Debug for dyn BufferType + '_ {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A piece of memory of some [`BufferType`]. Shared between threads: who writes where is decided by the allocator's plan
/// and the order of a graph, not by this type.
pub trait Buffer: Send + Sync {
    /// The kind of memory.
    fn buffer_type(&self) -> &Arc<dyn BufferType>;

    /// Bytes.
    fn size(&self) -> usize;

    /// The first byte, if the memory is the host's.
    fn host_ptr(&self) -> Option<NonNull<u8>>;

    /// Copies `data` into the buffer.
    fn write(&self, offset: usize, data: &[u8]) -> Result<(), BackendError>;

    /// Copies from the buffer into `out`.
    fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), BackendError>;

    /// An error if what the buffer holds is gone, as when a mapped file was shortened. Cheap: it is asked before every decode.
    fn check(&self) -> Result<(), BackendError> {
        Ok(())
    }

    /// For a backend to recognize its own buffers.
    fn as_any(&self) -> &dyn Any;
}

/// Every buffer that a graph's tensors may live in, by [`BufferId`].
#[derive(Clone, Default)]
pub struct MemoryMap {
    buffers: Vec<(Option<Arc<dyn Buffer>>, Usage)>,
}

impl MemoryMap {
    /// Adds a buffer.
    pub fn insert(&mut self, buffer: Arc<dyn Buffer>, usage: Usage) -> BufferId {
        let id = BufferId(u32::try_from(self.buffers.len()).expect("fewer than 2^32 buffers"));
        self.buffers.push((Some(buffer), usage));
        id
    }

    /// Puts another buffer in the place of an existing one; tensors that live there must be placed anew.
    pub fn replace(&mut self, id: BufferId, buffer: Arc<dyn Buffer>) {
        self.buffers[id.0 as usize].0 = Some(buffer);
    }

    /// Lets go of a buffer; its id stays taken until [`replace`](MemoryMap::replace) puts another one there.
    pub fn release(&mut self, id: BufferId) {
        self.buffers[id.0 as usize].0 = None;
    }

    /// The buffer with this id.
    pub fn get(&self, id: BufferId) -> &Arc<dyn Buffer> {
        self.buffers[id.0 as usize]
            .0
            .as_ref()
            .expect("the buffer of a home exists as long as its graph")
    }

    /// The buffer with this id, unless it was released or there is none.
    pub fn find(&self, id: BufferId) -> Option<&Arc<dyn Buffer>> {
        self.buffers.get(id.0 as usize)?.0.as_ref()
    }

    /// What the buffer is used for.
    pub fn usage(&self, id: BufferId) -> Usage {
        self.buffers[id.0 as usize].1
    }

    /// Address of a home in host memory; `None` if the buffer is not the host's.
    pub fn host_ptr(&self, home: Home) -> Option<NonNull<u8>> {
        let base = self.get(home.buffer).host_ptr()?;
        // SAFETY: a home's offset lies within its buffer: the allocator or the loader put it there after checking sizes.
        Some(unsafe { base.add(home.offset) })
    }
}

/// What a device is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeviceKind {
    /// The host's processor.
    Cpu,
    /// A graphics processor with memory of its own.
    Gpu,
    /// Something that computes in host memory beside the CPU.
    Accel,
}

/// Settings of a new backend.
#[derive(Clone, Debug)]
pub struct BackendParams {
    /// Threads for graphs of one or a few tokens.
    pub n_threads: usize,
    /// Threads for batches.
    pub n_threads_batch: usize,
    /// Threads shared with other backends, which then take turns; what is asked for above is limited to as many as these. By
    /// default a backend starts its own.
    pub thread_pool: Option<Arc<ThreadPool>>,
}

impl BackendParams {
    /// So many threads for everything, the backend's own.
    pub fn new(n_threads: usize) -> BackendParams {
        BackendParams {
            n_threads,
            n_threads_batch: n_threads,
            thread_pool: None,
        }
    }
}

/// Something that computes.
pub trait Device: Send + Sync {
    /// Unique name, such as `cpu`, as the command line takes it.
    fn name(&self) -> &str;

    /// For people: processor or card, instruction sets.
    fn description(&self) -> String;

    /// What it is.
    fn kind(&self) -> DeviceKind;

    /// Free and total bytes of memory.
    fn memory(&self) -> (usize, usize);

    /// Memory that the device prefers for weights, caches and intermediate results.
    fn buffer_type(&self) -> Arc<dyn BufferType>;

    /// A buffer over memory that already holds data, such as a mapped file; `None` if the device cannot use it in place.
    /// `keep` owns the memory and is held as long as the buffer.
    fn buffer_from_host(&self, keep: HostBytes) -> Option<Arc<dyn Buffer>> {
        let _ = keep;
        None
    }

    /// True if the device's backend can use operands in this kind of memory.
    fn supports_buffer_type(&self, buffer_type: &dyn BufferType) -> bool;

    /// True if the device's backend computes this node: op, types, shapes and strides.
    fn supports_op(&self, graph: &Graph, node: TensorId) -> bool;

    /// True if the op is worth computing here although its weights lie in host memory.
    fn offload_op(&self, graph: &Graph, node: TensorId) -> bool {
        let _ = (graph, node);
        false
    }

    /// A queue for copies from the host that run while the host goes on. `None`, the default, if there is no such thing: data is then
    /// written by [`Buffer::write`].
    fn upload_queue(&self) -> Result<Option<Box<dyn UploadQueue>>, BackendError> {
        Ok(None)
    }

    /// A new backend: threads, streams and scratch memory of its own.
    fn backend(self: Arc<Self>, params: &BackendParams) -> Result<Box<dyn Backend>, BackendError>;
}

/// Computes graphs on a device.
pub trait Backend: Send {
    /// The device.
    fn device(&self) -> &Arc<dyn Device>;

    /// Makes a plan for computing the nodes of a view: checks them, sets scratch memory aside, decides what is fused. A node's result
    /// may be left out of memory if all that [read](crate::graph::Uses::n_readers) it are computed together with it; a view's last
    /// node is always stored.
    ///
    /// `old` is a plan that is no longer wanted, whose memory the new one takes over: preparing for graphs that are no larger than
    /// earlier ones takes nothing from the heap.
    fn prepare(
        &mut self,
        view: &GraphView<'_>,
        memory: &MemoryMap,
        old: Option<Box<dyn Plan>>,
    ) -> Result<Box<dyn Plan>, BackendError>;

    /// Computes the nodes of a plan in order. `graph` and `memory` are what it was prepared for, unchanged: the plan is refused
    /// otherwise. Returns when done, or, for asynchronous backends, when queued.
    ///
    /// Once `cancel` is set it ends within about a node, with [`BackendError::Cancelled`], and the results of this run are undefined.
    fn run(
        &mut self,
        plan: &mut dyn Plan,
        graph: &Graph,
        memory: &mut MemoryMap,
        cancel: &AtomicBool,
    ) -> Result<(), BackendError>;

    /// Waits until everything queued is done. Nothing to do for backends that compute before they return.
    fn synchronize(&mut self) -> Result<(), BackendError> {
        Ok(())
    }

    /// An event of this backend, recorded nowhere yet (waiting for it returns at once). `None`, the default, for backends
    /// that compute before they return; the scheduler then synchronizes instead.
    fn new_event(&self) -> Result<Option<Box<dyn Event>>, BackendError> {
        Ok(None)
    }

    /// Moves one of its own events to the end of what is queued now.
    fn record_event(&mut self, event: &dyn Event) -> Result<(), BackendError> {
        let _ = event;
        Ok(())
    }

    /// Makes everything queued from now on wait for an event, possibly of another backend. By default the caller waits.
    fn wait_event(&mut self, event: &dyn Event) -> Result<(), BackendError> {
        event.synchronize()
    }

    /// Queues a copy of `len` bytes from memory that `source` computes into memory of this backend; buffers are given
    /// with an offset in bytes. The copy comes after all that is queued on `source`, and later work of both backends after
    /// the copy. False, the default, if it cannot: the scheduler then waits for both and copies through the host.
    fn copy_from_async(
        &mut self,
        source: &mut dyn Backend,
        from: (&dyn Buffer, usize),
        to: (&dyn Buffer, usize),
        len: usize,
    ) -> Result<bool, BackendError> {
        let _ = (source, from, to, len);
        Ok(false)
    }

    /// Changes the number of threads; ignored by backends without any.
    fn set_threads(&mut self, n_threads: usize) {
        let _ = n_threads;
    }
}

/// Copies from host memory to a device's, done in the order they were asked for.
pub trait UploadQueue: Send {
    /// Host memory to copy from, of the kind that the device fetches fastest from. By default any.
    fn staging(&self, size: usize) -> Result<Arc<dyn Buffer>, BackendError> {
        host::host_buffer_type().allocate(size)
    }

    /// Queues a copy of the first `len` bytes of a staging buffer to an offset of the device's. The staging buffer must not change until
    /// the copy was waited for.
    fn push(&mut self, from: &Arc<dyn Buffer>, len: usize, to: (&Arc<dyn Buffer>, usize)) -> Result<(), BackendError>;

    /// Waits until at most the last `n_left` copies are under way.
    fn wait(&mut self, n_left: usize) -> Result<(), BackendError>;
}

/// A point in the queue of an asynchronous backend.
pub trait Event: Send {
    /// Blocks until everything queued before the point is done.
    fn synchronize(&self) -> Result<(), BackendError>;

    /// For a backend to recognize its own events.
    fn as_any(&self) -> &dyn Any;
}

/// Devices that come from one library.
pub trait Registry: Send + Sync {
    /// Name of the family, such as `CPU`.
    fn name(&self) -> &str;

    /// Its devices; empty if there is none on this machine.
    fn devices(&self) -> Vec<Arc<dyn Device>>;
}

/// Same kind of memory?
pub fn same_buffer_type(a: &dyn BufferType, b: &dyn BufferType) -> bool {
    a.name() == b.name()
}

/// Every compiled-in family of backends, in the order of preference. The reference comes last: it is there to compare with.
pub fn registries() -> &'static [Arc<dyn Registry>] {
    static ALL: LazyLock<Vec<Arc<dyn Registry>>> = LazyLock::new(|| {
        vec![
            Arc::new(cpu::CpuRegistry::new()),
            Arc::new(reference::ReferenceRegistry::new()),
        ]
    });
    &ALL
}

/// Every device of this machine, in the order of preference.
pub fn devices() -> Vec<Arc<dyn Device>> {
    registries().iter().flat_map(|r| r.devices()).collect()
}

/// The device with this name.
pub fn device(name: &str) -> Option<Arc<dyn Device>> {
    devices().into_iter().find(|d| d.name() == name)
}

/// The most preferred device: the first of [`devices`].
pub fn default_device() -> Arc<dyn Device> {
    devices().into_iter().next().expect("the CPU is always there")
}
