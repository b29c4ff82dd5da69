//! Which backend computes which node: a graph is assigned, cut into splits, placed in memory, prepared, and computed.
//!
//! [`Scheduler::alloc_graph`] runs the passes of `assign` and `split`, gives every tensor a home and has each split's backend
//! prepare a plan; [`Scheduler::compute`] runs the plans in order, copying between memories where a split begins. Several graphs can
//! be prepared at once. One that was not changed since is not looked at again, and nothing here takes memory from the heap once the
//! tables of a graph have grown.

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

use crate::alloc::{AllocError, GraphAllocator};
use crate::backend::{Backend, BackendError, BufferType, Held, MemoryMap, PendingRead, Usage};
use crate::graph::{BufferId, Graph, Home, TensorId, Uses};

pub use compute::Observer;
pub use measure::Measure;

use assign::{Assigner, Site};
use inputs::InputContents;
use schedule::{Prepared, Schedule, Schedules};

/// More backends than this are refused: assignments are bytes, and no machine has so many.
pub const MAX_BACKENDS: usize = 16;

/// Why a graph could not be prepared or computed.
#[derive(Debug, thiserror::Error)]
pub enum SchedError {
    /// Too few or too many.
    #[error("a scheduler takes 1 to {MAX_BACKENDS} backends, not {0}")]
    BackendCount(usize),
    /// A user's assignment names a backend that does not exist.
    #[error("there is no backend {index}, only {count}")]
    NoSuchBackend {
        /// What was asked for.
        index: usize,
        /// How many there are.
        count: usize,
    },
    /// A tensor lies in memory of which no backend can do what is to be done with it.
    #[error("{tensor}: no backend computes {op} in {buffer_type} memory, where it lies")]
    Unreachable {
        /// Name of the tensor.
        tensor: String,
        /// Its op; `leaf` if no backend can use the memory at all.
        op: &'static str,
        /// The memory.
        buffer_type: String,
    },
    /// The graph is not the one prepared last, or was changed since.
    #[error("the graph must be allocated before it is computed")]
    NotAllocated,
    /// A tensor that is not part of the graph as computed, so that it has no memory.
    #[error("{tensor} is not part of the allocated graph")]
    NoHome {
        /// Name of the tensor.
        tensor: String,
    },
    /// Data of another size than the tensor's.
    #[error("{tensor} has {expected} bytes, not {found}")]
    Size {
        /// Name of the tensor.
        tensor: String,
        /// Its size in bytes.
        expected: usize,
        /// Size of the data in bytes.
        found: usize,
    },
    /// The graph could not be placed.
    #[error(transparent)]
    Alloc(#[from] AllocError),
    /// A backend refused or failed.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

type Result<T> = std::result::Result<T, SchedError>;

/// Position of a backend in its scheduler; a smaller one has priority.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BackendId(pub u8);

impl BackendId {
    /// The index into per-backend tables.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Settings of a [`Scheduler`].
#[derive(Clone, Copy, Debug)]
pub struct SchedParams {
    /// Lets a device take large ops although their weights lie in host memory; they are copied for each.
    pub op_offload: bool,
}

impl Default for SchedParams {
    fn default() -> SchedParams {
        SchedParams { op_offload: true }
    }
}

/// Computes graphs on several backends.
///
/// Holds every buffer that a graph's tensors may lie in: weights and caches, which are registered, and the intermediate
/// results, which it allocates.
pub struct Scheduler {
    /// Buffers by id.
    pub memory: MemoryMap,
    backends: Vec<Box<dyn Backend>>,
    sites: Vec<Site>,
    allocator: GraphAllocator,
    op_offload: bool,
    /// The user's assignments by tensor. May be shorter than a graph.
    user: Vec<Option<BackendId>>,
    schedules: Schedules,
    inputs: InputContents,
    uses: Uses,
    /// Number of changes of `user`.
    assignments: u64,
    observer: Option<Box<dyn Observer>>,
    cancel: Option<Arc<AtomicBool>>,
    scratch: compute::Scratch,
}

impl Scheduler {
    /// A scheduler over these backends, in the order of priority. The last one should be the CPU: it takes the graph's
    /// inputs, and what no other can do. `memory` holds the buffers of tensors that exist already.
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

    /// Makes a buffer known, so that tensors can have homes in it: a `Box` of the scheduler's own, or an `Arc` that is only read.
    pub fn register_buffer(&mut self, buffer: impl Into<Held>, usage: Usage) -> BufferId {
        self.memory.insert(buffer, usage)
    }

    /// Number of backends.
    pub fn n_backends(&self) -> usize {
        self.backends.len()
    }

    /// Number of threads of every backend that has any.
    pub fn set_threads(&mut self, n_threads: usize) {
        self.backends.iter_mut().for_each(|b| b.set_threads(n_threads));
    }

    /// A backend, for settings such as its number of threads.
    pub fn backend_mut(&mut self, backend: BackendId) -> &mut dyn Backend {
        &mut *self.backends[backend.index()]
    }

    /// Asks the observer about every node from now on; see [`Observer`].
    pub fn set_observer(&mut self, observer: Option<Box<dyn Observer>>) {
        self.observer = observer;
    }

    /// Once the flag is set, computing ends within about a node, with [`BackendError::Cancelled`].
    pub fn set_cancel(&mut self, cancel: Option<Arc<AtomicBool>>) {
        self.cancel = cancel;
    }

    /// Puts a tensor of the next graph on a backend, whatever the passes would do. Holds until [`reset`](Scheduler::reset).
    pub fn set_backend(&mut self, id: TensorId, backend: BackendId) -> Result<()> {
        let count = self.backends.len();
        if backend.index() >= count {
            let index = backend.index();
            return Err(SchedError::NoSuchBackend { index, count });
        }
        self.user.resize(self.user.len().max(id.index() + 1), None);
        self.user[id.index()] = Some(backend);
        self.assignments += 1;
        Ok(())
    }

    /// The backend of a tensor of the graph prepared last.
    pub fn backend_of(&self, id: TensorId) -> Option<BackendId> {
        self.schedules.last().backend_of(id)
    }

    /// Forgets the user's assignments and all prepared graphs. To be called before a graph is built anew, if
    /// [`set_backend`](Scheduler::set_backend) was used; tensor ids then mean other tensors.
    pub fn reset(&mut self) {
        self.user.clear();
        self.assignments += 1;
    }

    /// Sees to it that graphs of this form, and no larger, can be computed without taking memory. Leaves the graph prepared.
    pub fn reserve(&mut self, graph: &mut Graph) -> Result<()> {
        self.synchronize()?;
        self.with_schedule(graph, |s, graph, schedule| {
            s.split(graph, schedule)?;
            s.reserve_memory(graph, schedule)?;
            s.finish(graph, schedule)
        })
    }

    /// Bytes held for intermediate results, by backend. Memory shared by several counts for the first.
    pub fn reserve_sizes(&self) -> Vec<usize> {
        self.allocator.sizes()
    }

    /// Bytes that a graph would need, by backend, without taking them.
    pub fn measure(&mut self, graph: &mut Graph) -> Result<Vec<usize>> {
        self.with_schedule(graph, |s, graph, schedule| {
            s.split(graph, schedule)?;
            s.allocator.plan(graph, schedule.splits.order(), schedule.type_of())?;
            Ok(s.allocator.planned_sizes())
        })
    }

    /// Assigns, splits, places and prepares a graph. Does nothing if that was done and the graph was not changed since. Other graphs
    /// stay prepared, but share the memory of intermediate results: their inputs have to be written again.
    pub fn alloc_graph(&mut self, graph: &mut Graph) -> Result<()> {
        if self.is_prepared(graph) {
            return Ok(());
        }
        self.with_schedule(graph, |s, graph, schedule| {
            s.split(graph, schedule)?;
            let fits = s.allocator.fits(graph, schedule.splits.order(), schedule.type_of());
            if !fits || s.allocator.must_grow() {
                // Buffers may be replaced, and copies move, under a graph still in flight.
                s.synchronize()?;
                s.reserve_memory(graph, schedule)?;
            }
            s.finish(graph, schedule)
        })
    }

    /// Number of splits of the graph prepared last.
    pub fn n_splits(&self) -> usize {
        self.schedules.last().splits.splits.len()
    }

    /// Fills a whole tensor of a prepared graph, usually an input.
    pub fn set_input(&mut self, graph: &Graph, id: TensorId, data: &[u8]) -> Result<()> {
        check_size(graph, id, data.len(), graph.tensor(id).nbytes())?;
        self.write_tensor(graph, id, 0, data)
    }

    /// Writes `data` from byte `offset` of a tensor on. Of an input only what is not there yet is written.
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

    /// Reads from byte `offset` of a tensor on, after waiting for the backend that computes it.
    pub fn read_tensor(&mut self, graph: &Graph, id: TensorId, offset: usize, out: &mut [u8]) -> Result<()> {
        let home = part(graph, id, offset, out.len())?;
        match self.schedules.find(graph).and_then(|s| s.backend_of(id)) {
            Some(b) => self.backends[b.index()].synchronize()?,
            None => self.synchronize()?,
        }
        Ok(self.memory.read(home, out)?)
    }

    /// As [`read_tensor`](Scheduler::read_tensor) of the first `len` bytes, queued if the backend that computes the tensor can: the host
    /// may go on with other graphs meanwhile. `None` if it cannot.
    pub fn read_tensor_async(
        &mut self,
        graph: &Graph,
        id: TensorId,
        len: usize,
    ) -> Result<Option<Box<dyn PendingRead>>> {
        let home = part(graph, id, 0, len)?;
        let Some(b) = self.schedules.find(graph).and_then(|s| s.backend_of(id)) else {
            return Ok(None);
        };
        let buffer = self.memory.get(home.buffer)?;
        Ok(self.backends[b.index()].read_async(buffer, home.offset, len)?)
    }

    /// Waits until everything queued is done.
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

    /// Calls `f` with the schedule of a graph, which becomes the last one.
    fn with_schedule<T>(
        &mut self,
        graph: &mut Graph,
        f: impl FnOnce(&mut Scheduler, &mut Graph, &mut Schedule) -> Result<T>,
    ) -> Result<T> {
        let mut schedule = self.schedules.take(graph);
        schedule.set_prepared(None);
        let result = f(self, graph, &mut schedule);
        self.schedules.put_back(schedule);
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

    /// Plans the memory of a graph, and replaces buffers that are too small.
    fn reserve_memory(&mut self, graph: &Graph, schedule: &Schedule) -> Result<()> {
        let order = schedule.splits.order();
        Ok(self
            .allocator
            .reserve(graph, order, schedule.type_of(), &mut self.memory)?)
    }

    /// Takes memory to note what the inputs of a graph hold.
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

    /// The last part of preparing a graph whose memory is there: homes, and the plans of all splits.
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

/// Where `len` bytes from `offset` of a tensor lie.
fn part(graph: &Graph, id: TensorId, offset: usize, len: usize) -> Result<Home> {
    let tensor = graph.tensor(id);
    let end = offset.saturating_add(len);
    if end > tensor.nbytes() {
        check_size(graph, id, end, tensor.nbytes())?;
    }
    let home = graph.home(id).ok_or_else(|| SchedError::NoHome {
        tensor: tensor.name.to_string(),
    })?;
    Ok(Home {
        offset: home.offset.saturating_add(offset),
        ..home
    })
}
