//! The scheduler: assigns the nodes of a graph to backends, cuts the graph into splits, allocates memory, and
//! computes.
//!
//! [`Scheduler::alloc_graph`] runs the passes of `assign` and `split`, places every tensor, and prepares a
//! plan for each split. [`Scheduler::compute`] runs the plans in order and copies between memories at the
//! start of each split. Several graphs can be prepared at the same time. An unchanged graph is not processed
//! again, and computing does not allocate once the tables have grown.

mod assign;
mod compute;
mod copy;
mod describe;
#[cfg(test)]
pub(crate) mod fake;
mod inputs;
mod measure;
mod schedule;
mod split;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use kernels::GgmlType;

use crate::alloc::{AllocError, GraphAllocator};
use crate::backend::{Backend, BackendError, BestRows, BufferRef, BufferType, MemoryMap, PendingRead, Usage};
use crate::graph::{BufferId, BufferSlice, Graph, TensorId, Uses};

pub use compute::Observer;
pub use measure::Measure;

use assign::{Assigner, Site};
use inputs::InputContents;
use schedule::{Prepared, Schedule, Schedules};

/// Maximum number of backends. Assignments are stored as bytes.
pub const MAX_BACKENDS: usize = 16;

/// Errors of preparing or computing a graph.
#[derive(Debug, thiserror::Error)]
pub enum SchedError {
    /// The number of backends is out of range.
    #[error("expected 1 to {MAX_BACKENDS} backends, found {0}")]
    BackendCount(usize),
    /// A user's assignment refers to a backend that does not exist.
    #[error("backend index {index} is out of range: the scheduler has {count} backends")]
    BackendOutOfRange {
        /// Requested index.
        index: usize,
        /// Number of backends.
        count: usize,
    },
    /// A tensor is in memory for which no backend supports the tensor's op.
    #[error("cannot assign {tensor} to a backend: none supports {op} with {buffer_type} memory")]
    Unreachable {
        /// Name of the tensor.
        tensor: String,
        /// Op of the tensor; `leaf` if no backend can access the memory at all.
        op: &'static str,
        /// Name of the buffer type.
        buffer_type: String,
    },
    /// The graph is not the graph that was prepared last, or it changed since.
    #[error("cannot compute the graph: it is not allocated or has changed; call `alloc_graph` first")]
    NotAllocated,
    /// The tensor is not part of the computed graph and therefore has no memory.
    #[error("cannot access tensor {tensor}: it is not part of the allocated graph")]
    NoHome {
        /// Name of the tensor.
        tensor: String,
    },
    /// The size of the data differs from the size of the tensor.
    #[error("cannot access tensor {tensor}: expected {expected} bytes, found {found}")]
    Size {
        /// Name of the tensor.
        tensor: String,
        /// Size of the tensor in bytes.
        expected: usize,
        /// Size of the data in bytes.
        found: usize,
    },
    /// Memory for the graph could not be allocated.
    #[error(transparent)]
    Alloc(#[from] AllocError),
    /// A backend returned an error.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

type Result<T> = std::result::Result<T, SchedError>;

/// Index of a backend in its scheduler. Lower indices have priority.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BackendId(pub u8);

impl BackendId {
    /// Returns the index for per-backend tables.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Settings of a [`Scheduler`].
#[derive(Clone, Copy, Debug)]
pub struct SchedParams {
    /// Offload large ops to a device even if their weights are in host memory; the weights are copied for
    /// each such op.
    pub op_offload: bool,
}

impl Default for SchedParams {
    fn default() -> SchedParams {
        SchedParams { op_offload: true }
    }
}

/// Computes graphs on several backends.
///
/// A scheduler holds all buffers in which a graph's tensors may be stored: registered weights and caches, and
/// intermediate results that it allocates.
pub struct Scheduler {
    /// Buffers of weights and caches, by id.
    pub memory: MemoryMap,
    backends: Vec<Box<dyn Backend>>,
    sites: Vec<Site>,
    allocator: GraphAllocator,
    op_offload: bool,
    /// The user's assignments by tensor. May be shorter than the graph.
    user: Vec<Option<BackendId>>,
    schedules: Schedules,
    inputs: InputContents,
    uses: Uses,
    /// Counter that is incremented with every change of `user`.
    assignments: u64,
    observer: Option<Box<dyn Observer>>,
    cancel: Option<Arc<AtomicBool>>,
    scratch: compute::Scratch,
}

impl Scheduler {
    /// Creates a scheduler over these backends, in order of priority. `memory` holds the buffers of existing
    /// tensors.
    ///
    /// The last backend should be the CPU: it gets the graph's inputs, and everything that no other backend
    /// supports.
    pub fn new(backends: Vec<Box<dyn Backend>>, memory: MemoryMap, params: SchedParams) -> Result<Scheduler> {
        if backends.is_empty() || backends.len() > MAX_BACKENDS {
            return Err(SchedError::BackendCount(backends.len()));
        }
        let sites = backends.iter().map(|b| Site::of(b.device())).collect();
        Ok(Scheduler::over(sites, backends, memory, params))
    }

    fn over(sites: Vec<Site>, backends: Vec<Box<dyn Backend>>, memory: MemoryMap, params: SchedParams) -> Scheduler {
        let types: Vec<Arc<dyn BufferType>> = sites.iter().map(|s| s.memory.clone()).collect();
        Scheduler {
            memory,
            backends,
            sites,
            allocator: GraphAllocator::new(&types),
            op_offload: params.op_offload,
            user: Vec::new(),
            schedules: Schedules::default(),
            inputs: InputContents::default(),
            uses: Uses::default(),
            assignments: 0,
            observer: None,
            cancel: None,
            scratch: compute::Scratch::default(),
        }
    }

    /// Registers a buffer, so that tensors can be placed in it: a `Box` that the scheduler then owns, or a
    /// shared, read-only `Arc`.
    pub fn register_buffer(&mut self, buffer: impl Into<BufferRef>, usage: Usage) -> BufferId {
        self.memory.insert(buffer, usage)
    }

    /// Returns the number of backends.
    pub fn n_backends(&self) -> usize {
        self.backends.len()
    }

    /// Sets the number of threads of all backends that have threads.
    pub fn set_threads(&mut self, n_threads: usize) {
        self.backends.iter_mut().for_each(|b| b.set_threads(n_threads));
    }

    /// Returns a backend, for settings such as the number of threads.
    pub fn backend_mut(&mut self, backend: BackendId) -> &mut dyn Backend {
        &mut *self.backends[backend.index()]
    }

    /// Sets the observer of all future computations; see [`Observer`].
    pub fn set_observer(&mut self, observer: Option<Box<dyn Observer>>) {
        self.observer = observer;
    }

    /// Sets a cancellation flag. Once the flag is set, a computation ends within about one node with
    /// [`BackendError::Cancelled`].
    pub fn set_cancel(&mut self, cancel: Option<Arc<AtomicBool>>) {
        self.cancel = cancel;
    }

    /// Assigns a tensor of the next graph to a backend, overriding the passes. The assignment is valid until
    /// [`reset`](Scheduler::reset).
    pub fn set_backend(&mut self, id: TensorId, backend: BackendId) -> Result<()> {
        let count = self.backends.len();
        if backend.index() >= count {
            let index = backend.index();
            return Err(SchedError::BackendOutOfRange { index, count });
        }
        self.user.resize(self.user.len().max(id.index() + 1), None);
        self.user[id.index()] = Some(backend);
        self.assignments += 1;
        Ok(())
    }

    /// Returns the backend of a tensor of the last prepared graph.
    pub fn backend_of(&self, id: TensorId) -> Option<BackendId> {
        self.schedules.last().backend_of(id)
    }

    /// Discards the user's assignments and all prepared graphs. If [`set_backend`](Scheduler::set_backend)
    /// was used, this must be called before a graph is rebuilt, since tensor ids then change their meaning.
    pub fn reset(&mut self) {
        self.user.clear();
        self.assignments += 1;
    }

    /// Reserves memory, so that graphs with this structure and no larger tensors can be computed without
    /// allocation. The graph is then prepared.
    pub fn reserve(&mut self, graph: &mut Graph) -> Result<()> {
        self.synchronize()?;
        self.with_schedule(graph, |s, graph, schedule| {
            s.split(graph, schedule)?;
            s.reserve_memory(graph, schedule)?;
            s.finish(graph, schedule)
        })
    }

    /// Returns the bytes allocated for intermediate results, by backend. Shared memory counts for the first
    /// backend.
    pub fn reserve_sizes(&self) -> Vec<usize> {
        self.allocator.sizes()
    }

    /// Returns the bytes that a graph would need, by backend, without allocation.
    pub fn measure(&mut self, graph: &mut Graph) -> Result<Vec<usize>> {
        self.with_schedule(graph, |s, graph, schedule| {
            s.split(graph, schedule)?;
            s.allocator.plan(graph, schedule.splits.order(), schedule.type_of())?;
            Ok(s.allocator.planned_sizes())
        })
    }

    /// Assigns, splits, places, and prepares a graph. Does nothing if the graph is prepared and unchanged.
    ///
    /// Other graphs stay prepared but share the memory of intermediate results, so their inputs must be
    /// written again.
    pub fn alloc_graph(&mut self, graph: &mut Graph) -> Result<()> {
        if self.is_prepared(graph) {
            return Ok(());
        }
        self.with_schedule(graph, |s, graph, schedule| {
            s.split(graph, schedule)?;
            let fits = s.allocator.fits(graph, schedule.splits.order(), schedule.type_of());
            if !fits || s.allocator.must_grow() {
                // Buffers may be replaced, and copies may move, while a graph is in flight.
                s.synchronize()?;
                s.reserve_memory(graph, schedule)?;
            }
            s.finish(graph, schedule)
        })
    }

    /// Returns the number of splits of the last prepared graph.
    pub fn n_splits(&self) -> usize {
        self.schedules.last().splits.splits.len()
    }

    /// Writes a whole tensor of a prepared graph, usually an input.
    pub fn set_input(&mut self, graph: &Graph, id: TensorId, data: &[u8]) -> Result<()> {
        check_size(graph, id, data.len(), graph.tensor(id).nbytes())?;
        self.write_tensor(graph, id, 0, data)
    }

    /// Writes `data` at byte `offset` of a tensor. For inputs, unchanged ranges are skipped.
    pub fn write_tensor(&mut self, graph: &Graph, id: TensorId, offset: usize, data: &[u8]) -> Result<()> {
        let to = part(graph, id, offset, data.len())?;
        match (self.schedules.find(graph), graph.home(id)) {
            (Some(schedule), Some(home)) if schedule.splits.is_input(graph, id) => {
                self.inputs.follow(schedule.inputs_at(graph, &self.memory));
                Ok(self.inputs.write(&mut self.memory, home, offset, data)?)
            }
            _ => Ok(self.memory.write(to, data)?),
        }
    }

    /// Waits for the backend that computes a tensor, then reads at byte `offset` of the tensor.
    pub fn read_tensor(&mut self, graph: &Graph, id: TensorId, offset: usize, out: &mut [u8]) -> Result<()> {
        let home = part(graph, id, offset, out.len())?;
        match self.schedules.find(graph).and_then(|s| s.backend_of(id)) {
            Some(b) => self.backends[b.index()].synchronize()?,
            None => self.synchronize()?,
        }
        Ok(self.memory.read(home, out)?)
    }

    /// Enqueues a read of `len` bytes at byte `offset` of a tensor, so that the host can continue with other graphs.
    /// Returns `None` if the backend does not support this.
    pub fn read_tensor_async(
        &mut self,
        graph: &Graph,
        id: TensorId,
        offset: usize,
        len: usize,
    ) -> Result<Option<Box<dyn PendingRead>>> {
        let home = part(graph, id, offset, len)?;
        let Some(b) = self.schedules.find(graph).and_then(|s| s.backend_of(id)) else {
            return Ok(None);
        };
        let buffer = self.memory.get(home.buffer)?;
        Ok(self.backends[b.index()].read_async(buffer, home.offset, len)?)
    }

    /// Enqueues a search for the `k` largest values of each of the first `n_rows` rows of an f32 tensor. Returns `None`
    /// if the backend does not support this. See [`Backend::read_best_async`].
    pub fn read_best_async(
        &mut self,
        graph: &Graph,
        id: TensorId,
        n_rows: usize,
        k: usize,
    ) -> Result<Option<Box<dyn PendingRead>>> {
        let tensor = graph.tensor(id);
        let n_values = tensor.ne[0];
        let is_dense = tensor.ty == GgmlType::F32 && tensor.has_dense_rows() && tensor.nb[1] == 4 * n_values;
        let Some(b) = self.schedules.find(graph).and_then(|s| s.backend_of(id)) else {
            return Ok(None);
        };
        if !is_dense || k > n_values {
            return Ok(None);
        }
        let home = part(graph, id, 0, 4 * n_rows * n_values)?;
        let rows = BestRows {
            offset: home.offset,
            n_values,
            n_rows,
            k,
        };
        let buffer = self.memory.get(home.buffer)?;
        Ok(self.backends[b.index()].read_best_async(buffer, rows)?)
    }

    /// Waits until all enqueued work is done.
    pub fn synchronize(&mut self) -> Result<()> {
        for backend in &mut self.backends {
            backend.synchronize()?;
        }
        Ok(())
    }

    fn is_prepared(&self, graph: &Graph) -> bool {
        let schedule = self.schedules.find(graph);
        schedule.is_some_and(|s| s.is_for(self.prepared_now(graph)))
    }

    fn prepared_now(&self, graph: &Graph) -> Prepared {
        Prepared {
            graph: graph.version(),
            memory: self.memory.stamp(),
            assignments: self.assignments,
        }
    }

    /// Calls `f` with the schedule of a graph, which becomes the last prepared graph.
    fn with_schedule<T>(
        &mut self,
        graph: &mut Graph,
        f: impl FnOnce(&mut Scheduler, &mut Graph, &mut Schedule) -> Result<T>,
    ) -> Result<T> {
        let mut schedule = self.schedules.take(graph);
        schedule.set_prepared(None);
        let result = f(self, graph, &mut schedule);
        self.schedules.restore(schedule);
        result
    }

    fn split(&mut self, graph: &mut Graph, schedule: &mut Schedule) -> Result<()> {
        graph.undo_edits();
        let Schedule { of, splits, .. } = schedule;
        of.clear();
        of.extend(self.user.iter().copied().take(graph.len()));
        of.resize(graph.len(), None);
        assign::assign(&mut Assigner {
            graph,
            memory: &self.memory,
            sites: &self.sites,
            op_offload: self.op_offload,
            user: &self.user,
            of,
        })?;
        splits.begin(graph, self.sites.len());
        split::cut(graph, &self.memory, &self.sites, of, splits);
        split::order_steps(graph, splits);
        Ok(())
    }

    /// Plans the memory of a graph and replaces buffers that are too small.
    fn reserve_memory(&mut self, graph: &Graph, schedule: &Schedule) -> Result<()> {
        let order = schedule.splits.order();
        Ok(self
            .allocator
            .reserve(graph, order, schedule.type_of(), &mut self.memory)?)
    }

    /// Reserves memory for the cached contents of a graph's inputs.
    fn reserve_inputs(&mut self, graph: &Graph, schedule: &Schedule) {
        self.inputs.follow(schedule.inputs_at(graph, &self.memory));
        let splits = &schedule.splits;
        let leafs = graph.leafs().iter().copied();
        for input in leafs.filter(|&id| splits.is_input(graph, id)) {
            if let Some(home) = graph.home(input) {
                self.inputs.reserve(home, graph.tensor(input).nbytes());
            }
        }
    }

    /// Finishes the preparation of a graph whose memory is allocated: places the tensors and prepares the
    /// plans of all splits.
    fn finish(&mut self, graph: &mut Graph, schedule: &mut Schedule) -> Result<()> {
        self.allocator.write_homes(graph, schedule.splits.order());
        schedule.memory_plan = self.allocator.plan_number();
        self.reserve_inputs(graph, schedule);
        schedule.count_uses(graph, &mut self.uses);
        schedule.prepare(graph, &self.uses, &self.memory, &mut self.backends)?;
        schedule.set_prepared(Some(self.prepared_now(graph)));
        Ok(())
    }
}

fn check_size(graph: &Graph, id: TensorId, found: usize, expected: usize) -> Result<()> {
    if found == expected {
        return Ok(());
    }
    Err(SchedError::Size {
        tensor: graph.tensor(id).name.to_string(),
        expected,
        found,
    })
}

/// Returns the location of `len` bytes at byte `offset` of a tensor.
fn part(graph: &Graph, id: TensorId, offset: usize, len: usize) -> Result<BufferSlice> {
    let tensor = graph.tensor(id);
    let end = offset.saturating_add(len);
    if end > tensor.nbytes() {
        check_size(graph, id, end, tensor.nbytes())?;
    }
    let home = graph.home(id).ok_or_else(|| SchedError::NoHome {
        tensor: tensor.name.to_string(),
    })?;
    Ok(BufferSlice {
        offset: home.offset.saturating_add(offset),
        ..home
    })
}
