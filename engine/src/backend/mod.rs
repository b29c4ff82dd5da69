//! Memory and compute devices: registry -> device -> buffer type -> buffer, and device -> backend.
//!
//! [`Backend`] is a small trait with documented defaults. Code above this module refers to no concrete
//! backend except through [`registries`], the list of compiled-in backends.

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

pub use cpu::{NumaMode, ThreadPool, default_threads, is_distributed, set_numa};
use host::HostBytes;
pub use host::HostMemory;
pub use machine::installed_memory;
pub use memory::{BufferRef, HostRange, MemoryMap};
pub(crate) use plan::NodePlan;
pub use plan::{GraphView, Plan};
pub use profile::{Activity, OpTime, Profile};
pub use transfer::Stored;

/// Errors of backends and their memory.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    /// Allocating memory failed.
    #[error("cannot allocate {bytes} bytes of {buffer_type} memory")]
    OutOfMemory {
        /// Name of the buffer type.
        buffer_type: String,
        /// Requested size in bytes.
        bytes: usize,
    },
    /// A read or write extends beyond its buffer.
    #[error("cannot access {len} bytes at offset {offset}: the {buffer_type} buffer has {size} bytes")]
    OutOfBounds {
        /// Name of the buffer type.
        buffer_type: String,
        /// Offset of the first byte.
        offset: usize,
        /// Number of bytes.
        len: usize,
        /// Size of the buffer in bytes.
        size: usize,
    },
    /// The buffer never existed or was released.
    #[error("buffer {} does not exist or was released", .0.0)]
    NoBuffer(BufferId),
    /// A write to read-only memory: a mapped file, or weights shared by several contexts.
    #[error("cannot write to {buffer_type} memory: the buffer is read-only")]
    ReadOnly {
        /// Name of the buffer type.
        buffer_type: String,
    },
    /// A range of rows that is out of bounds or not a whole number of row groups, or data of the wrong size.
    #[error("cannot copy rows {}..{} of {n_rows} ({layout} layout) as {bytes} bytes: the range or the size does not match whole row groups", .rows.start, .rows.end)]
    Rows {
        /// Requested rows.
        rows: Range<usize>,
        /// Number of rows of the tensor.
        n_rows: usize,
        /// Name of the layout.
        layout: &'static str,
        /// Size of the data in bytes.
        bytes: usize,
    },
    /// No compiled-in backend supports this node.
    #[error("no backend supports {op} ({node}) with an operand of type {ty}")]
    Unsupported {
        /// Name of the op.
        op: &'static str,
        /// Name of the node.
        node: String,
        /// Type of the first operand.
        ty: kernels::GgmlType,
    },
    /// A mapped file was truncated while in use.
    #[error("{}: file was truncated while in use: expected {expected} bytes, found {found}", .path.display())]
    Shrunk {
        /// Path of the file.
        path: std::path::PathBuf,
        /// Size when the file was mapped.
        expected: usize,
        /// Current size.
        found: u64,
    },
    /// A page of a mapped file could not be read.
    #[error("{}: the file could not be read while in use: it was truncated, or its disk has an error; load the model again", .path.display())]
    Unreadable {
        /// Path of the file.
        path: std::path::PathBuf,
    },
    /// A mapped file was written while in use.
    #[error("{}: the file was changed while in use; load the model again", .path.display())]
    Overwritten {
        /// Path of the file.
        path: std::path::PathBuf,
    },
    /// Bytes that are computed from another file are invalid, as the text describes.
    #[error("{text}")]
    Computed {
        /// Error of the computation.
        text: String,
    },
    /// The computation was cancelled through its flag.
    #[error("cancelled")]
    Cancelled,
    /// A plan was run with a graph or memory other than those it was prepared for, or they changed in
    /// between.
    #[error("{device}: cannot run the plan: the graph or its memory changed after the plan was prepared")]
    StalePlan {
        /// Name of the device.
        device: String,
    },
    /// Any other error reported by a device.
    #[error("{device}: {message}")]
    Device {
        /// Name of the device.
        device: String,
        /// Error message of the device.
        message: String,
    },
}

/// Purpose of a buffer. The scheduler assigns ops to the backend of their weights.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Usage {
    /// Memory without a particular purpose.
    #[default]
    Any,
    /// Model weights.
    Weights,
    /// Memory for intermediate results of a graph.
    Compute,
}

/// A kind of memory. Two types are equal if their names are equal.
pub trait BufferType: Send + Sync {
    /// Returns the unique name, such as `CPU`.
    fn name(&self) -> &str;

    /// Returns the alignment of tensor offsets in bytes, a power of two.
    fn alignment(&self) -> usize;

    /// Returns the maximum size of a buffer in bytes.
    fn max_size(&self) -> usize {
        usize::MAX
    }

    /// Returns the number of bytes to allocate for a tensor, at least [`Tensor::nbytes`].
    fn alloc_size(&self, tensor: &Tensor) -> usize {
        tensor.nbytes()
    }

    /// Returns true if the CPU can access the memory through its address.
    fn is_host(&self) -> bool;

    /// Allocates a zeroed buffer of `size` bytes.
    fn allocate(&self, size: usize) -> Result<Box<dyn Buffer>, BackendError>;
}

impl fmt::Debug for dyn BufferType + '_ {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A contiguous range of memory of some [`BufferType`].
///
/// A `Box<dyn Buffer>` has a single owner, who writes through `&mut`. An `Arc<dyn Buffer>` can be read by
/// many owners and written by none:
/// ```compile_fail,E0596
/// # use std::sync::Arc;
/// # use engine::backend::{Buffer, default_device};
/// let shared: Arc<dyn Buffer> = Arc::from(default_device().buffer_type().allocate(8).unwrap());
/// shared.write(0, &[1]).unwrap();
/// ```
/// The trait is unsafe to implement:
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
/// Backends access host memory through its address. If [`host_ptr`](Buffer::host_ptr) returns a pointer, the
/// implementation must guarantee:
/// - The pointer is valid for [`size`](Buffer::size) initialized bytes. The address does not change during
///   the lifetime of the buffer, even if the value is moved.
/// - The bytes are only modified by the owner of `&mut self`, through its methods or through the pointer, and
///   never if the buffer [is read-only](Buffer::is_read_only). A device that writes asynchronously must be
///   done before the buffer can be used.
pub unsafe trait Buffer: Send + Sync {
    /// Returns the kind of memory.
    fn buffer_type(&self) -> &Arc<dyn BufferType>;

    /// Returns the size in bytes.
    fn size(&self) -> usize;

    /// Returns a pointer to the first byte, or `None` if the CPU cannot access the memory.
    fn host_ptr(&self) -> Option<NonNull<u8>>;

    /// Returns true if the buffer must never be written, like a mapped file.
    fn is_read_only(&self) -> bool {
        false
    }

    /// Copies `data` into the buffer at byte `offset`.
    fn write(&mut self, offset: usize, data: &[u8]) -> Result<(), BackendError>;

    /// Copies bytes starting at `offset` into `out`.
    fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), BackendError>;

    /// Returns all bytes, or `None` if the CPU cannot access the memory.
    fn bytes(&self) -> Option<&[u8]> {
        let start = self.host_ptr()?;
        // SAFETY: `host_ptr` is valid for `size` initialized bytes (contract of [`Buffer`]), and nobody can
        // modify them while `self` is borrowed.
        Some(unsafe { slice::from_raw_parts(start.as_ptr(), self.size()) })
    }

    /// Returns all bytes for writing, or `None` if the CPU cannot access the memory or the buffer is
    /// read-only.
    fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        if self.is_read_only() {
            return None;
        }
        let start = self.host_ptr()?;
        // SAFETY: `host_ptr` is valid for `size` initialized bytes (contract of [`Buffer`]), and the buffer
        // is borrowed exclusively.
        Some(unsafe { slice::from_raw_parts_mut(start.as_ptr(), self.size()) })
    }

    /// Converts rows from the file format to the tensor's layout and stores them.
    ///
    /// Rows are numbered across all matrices of the tensor. Layouts with row groups require whole groups.
    fn set_tensor(&mut self, tensor: &Stored, rows: Range<usize>, data: &[u8]) -> Result<(), BackendError> {
        transfer::set_tensor(self, tensor, rows, data)
    }

    /// Reads rows that [`set_tensor`](Buffer::set_tensor) stored and converts them back to the file format.
    fn get_tensor(&self, tensor: &Stored, rows: Range<usize>, out: &mut [u8]) -> Result<(), BackendError> {
        transfer::get_tensor(self, tensor, rows, out)
    }

    /// Returns an error if the contents are no longer available, for example because a mapped file was
    /// truncated. Called before every decode, so it must be cheap.
    fn check(&self) -> Result<(), BackendError> {
        Ok(())
    }

    /// Returns `self` for downcasting to the backend's own buffer type.
    fn as_any(&self) -> &dyn Any;

    /// Returns `self` for mutable downcasting.
    fn as_any_mut(&mut self) -> &mut dyn Any;
}

/// Returns an error unless `len` bytes at `offset` are within the buffer.
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

/// The kind of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeviceKind {
    /// The host CPU, which computes in host memory.
    Cpu,
    /// A GPU with its own memory.
    Gpu,
    /// An accelerator that computes in host memory.
    Accel,
}

/// A storage option for weights.
#[derive(Clone, Debug)]
pub struct WeightStorage {
    /// Buffer type that stores the weights.
    pub buffer_type: Arc<dyn BufferType>,
    /// Row layout of the weights.
    pub layout: Layout,
}

/// Settings of a new backend.
#[derive(Clone, Debug)]
pub struct BackendParams {
    /// Number of threads for graphs of one or few tokens.
    pub n_threads: usize,
    /// Number of threads for batches.
    pub n_threads_batch: usize,
    /// Thread pool shared with other backends, which take turns. Its size limits the thread counts above. By
    /// default, a backend starts its own threads.
    pub thread_pool: Option<Arc<ThreadPool>>,
    /// Precision of matmuls. Ignored by backends with a single kind of matmul.
    pub precision: Precision,
    /// Profile to which the backend adds the time of ops. Ignored by backends without profiling. `None` (the
    /// default) disables profiling.
    pub profile: Option<Profile>,
}

impl BackendParams {
    /// Returns settings with `n_threads` threads in a private pool, exact matmuls, and no profiling.
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

/// A compute device.
pub trait Device: Send + Sync {
    /// Returns the unique name, such as `cpu`, as accepted on the command line.
    fn name(&self) -> &str;

    /// Returns a human-readable description: processor or GPU model, instruction sets.
    fn description(&self) -> String;

    /// Returns the kind of device.
    fn kind(&self) -> DeviceKind;

    /// Returns the free and total memory in bytes, or (0, 0) if unknown.
    fn memory(&self) -> (usize, usize);

    /// Returns the preferred memory for weights, caches, and intermediate results.
    fn buffer_type(&self) -> Arc<dyn BufferType>;

    /// Wraps existing memory, such as a mapped file, in a buffer. Returns `None` if the device cannot access
    /// the memory in place.
    ///
    /// The buffer holds `keep`, which owns the memory.
    fn buffer_from_host(&self, keep: HostBytes) -> Option<Box<dyn Buffer>> {
        let _ = keep;
        None
    }

    /// Returns true if the device's backend can read operands in this kind of memory.
    fn supports_buffer_type(&self, buffer_type: &dyn BufferType) -> bool;

    /// Returns the storage options for weights, best first.
    ///
    /// The loader takes the first option whose layout accepts the tensor and whose op the device supports. If
    /// that is the plain layout in host memory, the pages of the mapped file are used directly. Every list
    /// ends with the default: the plain layout in [`buffer_type`](Device::buffer_type).
    fn weight_storage(&self) -> Vec<WeightStorage> {
        vec![WeightStorage {
            buffer_type: self.buffer_type(),
            layout: Layout::Plain,
        }]
    }

    /// Returns true if the device's backend supports this node: its op, types, shapes, strides, and operand
    /// layouts. `memory` gives the kind of memory of operands that are already allocated.
    fn supports_op(&self, graph: &Graph, node: TensorId, memory: &MemoryMap) -> bool;

    /// Returns true if the op is worth computing here although its weights are in host memory.
    fn offload_op(&self, graph: &Graph, node: TensorId) -> bool {
        let _ = (graph, node);
        false
    }

    /// Starts filling a new buffer of the device's memory.
    ///
    /// The default calls [`Buffer::set_tensor`] synchronously. A device with DMA copies in the background.
    fn upload(&self, buffer: Box<dyn Buffer>) -> Result<Box<dyn Upload>, BackendError> {
        Ok(Box::new(host::DirectUpload(buffer)))
    }

    /// Creates a backend with its own threads, streams, and scratch memory.
    fn backend(self: Arc<Self>, params: &BackendParams) -> Result<Box<dyn Backend>, BackendError>;
}

/// Computes graphs on a device.
pub trait Backend: Any + Send {
    /// Returns the device.
    fn device(&self) -> &Arc<dyn Device>;

    /// Prepares a plan for the nodes of a view: checks the nodes, allocates scratch memory, and selects
    /// fusions.
    ///
    /// A result may stay unstored if all of its [readers](crate::graph::Uses::n_readers) are fused with it.
    /// The last node of a view is always stored.
    ///
    /// `old` is a discarded plan whose memory the new plan reuses, so that preparing a graph no larger than
    /// earlier graphs does not allocate.
    fn prepare(
        &mut self,
        view: &GraphView<'_>,
        memory: &MemoryMap,
        old: Option<Box<dyn Plan>>,
    ) -> Result<Box<dyn Plan>, BackendError>;

    /// Computes the nodes of a plan in order. Returns when they are done or, for asynchronous backends,
    /// enqueued.
    ///
    /// Returns [`BackendError::StalePlan`] if `graph` or `memory` changed after the plan was prepared. Once
    /// `cancel` is set, the run ends within about one node with [`BackendError::Cancelled`], and its results
    /// are undefined.
    ///
    /// A computation borrows its memory exclusively:
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

    /// Waits until all enqueued work is done. The default does nothing, for synchronous backends.
    fn synchronize(&mut self) -> Result<(), BackendError> {
        Ok(())
    }

    /// Enqueues a write of `data` to byte `offset` of a buffer of this backend. The write is ordered with all
    /// other work of the backend, and `data` may be reused immediately.
    ///
    /// Returns false (the default) if unsupported; the caller then waits and writes directly.
    fn write_async(&mut self, to: &mut dyn Buffer, offset: usize, data: &[u8]) -> Result<bool, BackendError> {
        let _ = (to, offset, data);
        Ok(false)
    }

    /// Enqueues a read of `len` bytes at byte `offset` of a buffer of this backend. The read is ordered with
    /// all other work of the backend, so that later work does not change the result.
    ///
    /// Returns `None` (the default) if unsupported; the caller then waits and reads directly.
    fn read_async(
        &mut self,
        from: &dyn Buffer,
        offset: usize,
        len: usize,
    ) -> Result<Option<Box<dyn PendingRead>>, BackendError> {
        let _ = (from, offset, len);
        Ok(None)
    }

    /// Enqueues a search for the largest values of rows in a buffer of this backend, ordered like
    /// [`Backend::read_async`]. Each row of the result has `2 * k + 2` words: the indices of the `k` largest values,
    /// then the values. The largest value is first, and equal values are in the order of their indices. The last words
    /// are the index of the first value that is NaN or positive infinity, or [`u32::MAX`], and this value. With such a
    /// value, the other words are unspecified.
    ///
    /// Returns `None` (the default) if unsupported; the caller then reads all values.
    fn read_best_async(
        &mut self,
        from: &dyn Buffer,
        rows: BestRows,
    ) -> Result<Option<Box<dyn PendingRead>>, BackendError> {
        let _ = (from, rows);
        Ok(None)
    }

    /// Enqueues a copy of `len` bytes from memory of `source` to memory of this backend. Buffers are given
    /// with a byte offset, which the implementation must check.
    ///
    /// The copy is ordered with all other work of both backends. Returns false (the default) if unsupported;
    /// the scheduler then waits for both backends and copies through the host.
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

    /// Sets the number of threads. Ignored by backends without threads.
    fn set_threads(&mut self, n_threads: usize) {
        let _ = n_threads;
    }
}

/// A buffer that is being filled from host memory. The upload owns the buffer until all data has arrived.
pub trait Upload: Send {
    /// Converts and stores rows, as [`Buffer::set_tensor`] does. The transfer may complete after this call
    /// returns, but `data` can be reused immediately.
    fn set_tensor(&mut self, tensor: &Stored, rows: Range<usize>, data: &[u8]) -> Result<(), BackendError>;

    /// Waits until all data has arrived, and returns the buffer.
    fn finish(self: Box<Self>) -> Result<Box<dyn Buffer>, BackendError>;
}

/// Rows whose largest values are searched: contiguous f32 values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BestRows {
    /// Byte offset of the first row in its buffer.
    pub offset: usize,
    /// Number of values per row.
    pub n_values: usize,
    /// Number of rows.
    pub n_rows: usize,
    /// Number of values to find in each row, at most `n_values`.
    pub k: usize,
}

/// A read from device memory that is in flight.
pub trait PendingRead: Send {
    /// Waits for the data and copies it to `out`, which has the requested length.
    fn wait(self: Box<Self>, out: &mut [u8]) -> Result<(), BackendError>;
}

/// A family of devices with a common driver.
pub trait Registry: Send + Sync {
    /// Returns the name of the family, such as `CPU`.
    fn name(&self) -> &str;

    /// Returns the devices; empty if this machine has none.
    fn devices(&self) -> Vec<Arc<dyn Device>>;

    /// Returns the reasons why devices are missing or unusable. Empty by default.
    fn problems(&self) -> Vec<String> {
        Vec::new()
    }
}

/// Returns true if both types are the same kind of memory.
pub fn same_buffer_type(a: &dyn BufferType, b: &dyn BufferType) -> bool {
    a.name() == b.name()
}

/// Returns all compiled-in families of backends, in order of preference. The reference backend is last; it
/// exists for testing.
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

/// Returns all devices of this machine, in order of preference.
pub fn devices() -> Vec<Arc<dyn Device>> {
    all_devices().collect()
}

/// Enumerates all devices. Each registry is queried only when the iterator reaches it, since a driver takes
/// long to start.
fn all_devices() -> impl Iterator<Item = Arc<dyn Device>> {
    registries().iter().flat_map(|r| r.devices())
}

/// Returns the device with this name.
pub fn device(name: &str) -> Option<Arc<dyn Device>> {
    all_devices().find(|d| d.name() == name)
}

/// Returns the preferred device: the first of [`devices`].
pub fn default_device() -> Arc<dyn Device> {
    all_devices().next().expect("the CPU device always exists")
}
