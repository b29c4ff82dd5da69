//! Where tensors live and what computes them: registry -> device -> buffer type -> buffer, and device -> backend.
//!
//! A backend is a small trait with documented defaults; nothing above this module names a concrete one except
//! [`registries`], the one list of compiled-in backends.

pub mod cpu;
pub mod cuda;
pub mod host;
mod machine;
mod memory;
mod plan;
mod profile;
pub mod reference;
mod rules;
mod transfer;

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;
use std::slice;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, LazyLock};

use kernels::Precision;

use crate::graph::{BufferId, Graph, Layout, Tensor, TensorId};

pub use cpu::ThreadPool;
use host::HostBytes;
pub use host::HostMemory;
pub use machine::installed_memory;
pub use memory::{Held, HostRange, MemoryMap};
pub(crate) use plan::NodePlan;
pub use plan::{GraphView, Plan};
pub use profile::{Activity, OpTime, Profile};
pub use transfer::Stored;

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
    #[error("{buffer_type}: access to {len} bytes at {offset} of a buffer of {size} bytes")]
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
    /// A buffer that was never there, or was let go.
    #[error("there is no buffer {}", .0.0)]
    NoBuffer(BufferId),
    /// A write to memory that is only read: a mapped file, or weights that several contexts share.
    #[error("{buffer_type}: write to read-only memory")]
    ReadOnly {
        /// Name of the buffer type.
        buffer_type: String,
    },
    /// Rows of a tensor that are not there, that only move together with others, or data of another size than theirs.
    #[error("rows {}..{} of {n_rows}, stored as {layout}, are not to be moved as {bytes} bytes", .rows.start, .rows.end)]
    Rows {
        /// The rows.
        rows: Range<usize>,
        /// Rows that there are.
        n_rows: usize,
        /// Name of the layout.
        layout: &'static str,
        /// Size of the data.
        bytes: usize,
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
    fn allocate(&self, size: usize) -> Result<Box<dyn Buffer>, BackendError>;
}

impl fmt::Debug for dyn BufferType + '_ {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A piece of memory of some [`BufferType`].
///
/// A `Box<dyn Buffer>` has one owner, who writes through `&mut`. An `Arc<dyn Buffer>` may be read by many and is written by nobody:
/// ```compile_fail,E0596
/// # use std::sync::Arc;
/// # use engine::backend::{Buffer, default_device};
/// let shared: Arc<dyn Buffer> = Arc::from(default_device().buffer_type().allocate(8).unwrap());
/// shared.write(0, &[1]).unwrap();
/// ```
/// Implementing it takes `unsafe`:
/// ```compile_fail,E0200
/// # use std::{any::Any, ptr::NonNull, sync::Arc};
/// # use engine::backend::*;
/// struct Mine;
/// impl Buffer for Mine {
/// #    fn buffer_type(&self) -> &Arc<dyn BufferType> { unreachable!() }
/// #    fn size(&self) -> usize { 1 << 40 }
/// #    fn host_ptr(&self) -> Option<NonNull<u8>> { Some(NonNull::dangling()) }
/// #    fn write(&mut self, _: usize, _: &[u8]) -> Result<(), BackendError> { Ok(()) }
/// #    fn read(&self, _: usize, _: &mut [u8]) -> Result<(), BackendError> { Ok(()) }
/// #    fn as_any(&self) -> &dyn Any { self }
/// #    fn as_any_mut(&mut self) -> &mut dyn Any { self }
/// }
/// ```
///
/// # Safety
/// Backends use host memory by its address. An implementation promises of the bytes behind [`host_ptr`](Buffer::host_ptr), if it gives
/// one:
/// - there are [`size`](Buffer::size) of them, initialized, at an address that is the same as long as the buffer lives, wherever the
///   value itself is moved;
/// - they are changed only by who holds the buffer by `&mut`, be it through its methods or through the pointer, and not at all if
///   it [is read-only](Buffer::is_read_only); a device that changes them by itself is done with it whenever the buffer can be used.
pub unsafe trait Buffer: Send + Sync {
    /// The kind of memory.
    fn buffer_type(&self) -> &Arc<dyn BufferType>;

    /// Bytes.
    fn size(&self) -> usize;

    /// The first byte, if the memory is the host's.
    fn host_ptr(&self) -> Option<NonNull<u8>>;

    /// True if nothing may ever be written here, as with a mapped file.
    fn is_read_only(&self) -> bool {
        false
    }

    /// Copies `data` into the buffer.
    fn write(&mut self, offset: usize, data: &[u8]) -> Result<(), BackendError>;

    /// Copies from the buffer into `out`.
    fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), BackendError>;

    /// All bytes, if the memory is the host's.
    fn bytes(&self) -> Option<&[u8]> {
        let start = self.host_ptr()?;
        // SAFETY: that many initialized bytes are there (see [`Buffer`]), and who might change them would need `&mut`.
        Some(unsafe { slice::from_raw_parts(start.as_ptr(), self.size()) })
    }

    /// All bytes, for writing, if the memory is the host's and may be written.
    fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        let start = self.host_ptr().filter(|_| !self.is_read_only())?;
        // SAFETY: as in `bytes`; the buffer is borrowed exclusively, and its memory with it.
        Some(unsafe { slice::from_raw_parts_mut(start.as_ptr(), self.size()) })
    }

    /// Stores rows of a tensor, given as a file has them, in the tensor's layout. Rows are counted over all matrices of the tensor; of
    /// layouts that store them in groups whole groups are to be given.
    fn set_tensor(&mut self, tensor: &Stored, rows: Range<usize>, data: &[u8]) -> Result<(), BackendError> {
        transfer::set_tensor(self, tensor, rows, data)
    }

    /// Reads back what [`set_tensor`](Buffer::set_tensor) stored, as a file has it.
    fn get_tensor(&self, tensor: &Stored, rows: Range<usize>, out: &mut [u8]) -> Result<(), BackendError> {
        transfer::get_tensor(self, tensor, rows, out)
    }

    /// An error if what the buffer holds is gone, as when a mapped file was shortened. Cheap: it is asked before every decode.
    fn check(&self) -> Result<(), BackendError> {
        Ok(())
    }

    /// For a backend to recognize its own buffers.
    fn as_any(&self) -> &dyn Any;

    /// As [`as_any`](Buffer::as_any), for writing.
    fn as_any_mut(&mut self) -> &mut dyn Any;
}

/// An error unless `len` bytes at `offset` lie within the buffer.
pub(crate) fn check_range<B: Buffer + ?Sized>(buffer: &B, offset: usize, len: usize) -> Result<(), BackendError> {
    match offset.checked_add(len) {
        Some(end) if end <= buffer.size() => Ok(()),
        _ => Err(BackendError::OutOfBounds {
            buffer_type: buffer.buffer_type().name().to_owned(),
            offset,
            len,
            size: buffer.size(),
        }),
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

/// A place for weights.
#[derive(Clone, Debug)]
pub struct WeightStorage {
    /// Kind of memory.
    pub buffer_type: Arc<dyn BufferType>,
    /// Arrangement of their rows there.
    pub layout: Layout,
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
    /// What matrix products may cost in accuracy; ignored by backends that know one kind of product only.
    pub precision: Precision,
    /// Where to add up the time of ops; ignored by backends that do not know it. By default times are not taken.
    pub profile: Option<Profile>,
}

impl BackendParams {
    /// So many threads for everything, the backend's own, and exact products.
    pub fn new(n_threads: usize) -> BackendParams {
        BackendParams {
            n_threads,
            n_threads_batch: n_threads,
            thread_pool: None,
            precision: Precision::Exact,
            profile: None,
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

    /// Free and total bytes of memory, (0, 0) where they cannot be found out.
    fn memory(&self) -> (usize, usize);

    /// Memory that the device prefers for weights, caches and intermediate results.
    fn buffer_type(&self) -> Arc<dyn BufferType>;

    /// A buffer over memory that already holds data, such as a mapped file; `None` if the device cannot use it in place.
    /// `keep` owns the memory and is held as long as the buffer.
    fn buffer_from_host(&self, keep: HostBytes) -> Option<Box<dyn Buffer>> {
        let _ = keep;
        None
    }

    /// True if the device's backend can use operands in this kind of memory.
    fn supports_buffer_type(&self, buffer_type: &dyn BufferType) -> bool;

    /// Where and in which layout the device would have weights, the best first. The loader takes the first layout that accepts the tensor
    /// and of which the device supports the op that uses it; the file's pages serve as they are where that is the plain layout of
    /// host memory. By default, and at the end of every such list: plain, in [`buffer_type`](Device::buffer_type).
    fn weight_storage(&self) -> Vec<WeightStorage> {
        vec![WeightStorage {
            buffer_type: self.buffer_type(),
            layout: Layout::Plain,
        }]
    }

    /// True if the device's backend computes this node: op, types, shapes, strides and layouts of its operands. `memory` tells what
    /// kind of memory operands lie in, those that have a home.
    fn supports_op(&self, graph: &Graph, node: TensorId, memory: &MemoryMap) -> bool;

    /// True if the op is worth computing here although its weights lie in host memory.
    fn offload_op(&self, graph: &Graph, node: TensorId) -> bool {
        let _ = (graph, node);
        false
    }

    /// Fills a new buffer of the device's memory. By default [`Buffer::set_tensor`] does; a device that fetches data by itself lets the host
    /// go on meanwhile.
    fn upload(&self, buffer: Box<dyn Buffer>) -> Result<Box<dyn Upload>, BackendError> {
        Ok(Box::new(host::DirectUpload(buffer)))
    }

    /// A new backend: threads, streams and scratch memory of its own.
    fn backend(self: Arc<Self>, params: &BackendParams) -> Result<Box<dyn Backend>, BackendError>;
}

/// Computes graphs on a device.
pub trait Backend: Any + Send {
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
    ///
    /// A computation has its memory to itself:
    /// ```compile_fail,E0499
    /// # use std::sync::atomic::AtomicBool;
    /// # use engine::backend::*;
    /// # use engine::graph::Graph;
    /// # fn two_runs(one: &mut dyn Backend, two: &mut dyn Backend, plans: &mut [Box<dyn Plan>; 2]) {
    /// # let (graph, mut memory, never) = (Graph::new(), MemoryMap::default(), AtomicBool::new(false));
    /// # let [a, b] = plans;
    /// std::thread::scope(|s| {
    ///     s.spawn(|| one.run(&mut **a, &graph, &mut memory, &never));
    ///     s.spawn(|| two.run(&mut **b, &graph, &mut memory, &never));
    /// });
    /// # }
    /// ```
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

    /// Queues writing `data` to byte `offset` of a buffer of this backend, after all that is queued; later work sees it. `data` may change as
    /// soon as this returns. False, the default, if it cannot: the caller then waits and writes directly.
    fn write_async(&mut self, to: &mut dyn Buffer, offset: usize, data: &[u8]) -> Result<bool, BackendError> {
        let _ = (to, offset, data);
        Ok(false)
    }

    /// Queues reading `len` bytes from byte `offset` of a buffer of this backend, after all that is queued; what is queued later does not
    /// change what is read. `None`, the default, if it cannot: the caller then waits and reads directly.
    fn read_async(
        &mut self,
        from: &dyn Buffer,
        offset: usize,
        len: usize,
    ) -> Result<Option<Box<dyn PendingRead>>, BackendError> {
        let _ = (from, offset, len);
        Ok(None)
    }

    /// Queues a copy of `len` bytes from memory that `source` computes into memory of this backend; buffers are given
    /// with an offset in bytes, which the callee checks. The copy comes after all that is queued on `source` and on this backend, and later work
    /// of both backends after the copy. False, the default, if it cannot: the scheduler then waits for both and copies through the host.
    fn copy_from_async(
        &mut self,
        source: &mut dyn Backend,
        from: (&dyn Buffer, usize),
        to: (&mut dyn Buffer, usize),
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

/// A buffer that is being filled from host memory. It belongs to the upload until all data has arrived, so nobody can use it too early.
pub trait Upload: Send {
    /// As [`Buffer::set_tensor`]. The rows may arrive later than this returns; `data` is no longer needed then.
    fn set_tensor(&mut self, tensor: &Stored, rows: Range<usize>, data: &[u8]) -> Result<(), BackendError>;

    /// Waits until everything has arrived.
    fn finish(self: Box<Self>) -> Result<Box<dyn Buffer>, BackendError>;
}

/// Bytes on their way from a device's memory.
pub trait PendingRead: Send {
    /// Waits for them. `out` has as many bytes as were asked for.
    fn wait(self: Box<Self>, out: &mut [u8]) -> Result<(), BackendError>;
}

/// Devices that come from one library.
pub trait Registry: Send + Sync {
    /// Name of the family, such as `CPU`.
    fn name(&self) -> &str;

    /// Its devices; empty if there is none on this machine.
    fn devices(&self) -> Vec<Arc<dyn Device>>;

    /// Why there is no device, or why some that are there cannot be used. By default there is nothing to say.
    fn flaws(&self) -> Vec<String> {
        Vec::new()
    }
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
            Arc::new(cuda::CudaRegistry::new()),
            Arc::new(reference::ReferenceRegistry::new()),
        ]
    });
    &ALL
}

/// Every device of this machine, in the order of preference.
pub fn devices() -> Vec<Arc<dyn Device>> {
    all_devices().collect()
}

/// Every device, those of a registry looked for when they are come to: a driver takes its time to start.
fn all_devices() -> impl Iterator<Item = Arc<dyn Device>> {
    registries().iter().flat_map(|r| r.devices())
}

/// The device with this name.
pub fn device(name: &str) -> Option<Arc<dyn Device>> {
    all_devices().find(|d| d.name() == name)
}

/// The most preferred device: the first of [`devices`].
pub fn default_device() -> Arc<dyn Device> {
    all_devices().next().expect("the CPU is always there")
}
