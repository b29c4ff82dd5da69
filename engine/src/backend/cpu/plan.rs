//! Plans: nodes that were checked and found in memory, with barriers and fusions decided, and the scratch memory they need.

use super::NAME;
use super::barriers::{Access, Barriers};
use super::fuse::fusion;
use super::ops::{self, Need, norm};
use super::view::PlannedNode;
use crate::backend::host::HostBuffer;
use crate::backend::{BackendError, Buffer, GraphView, MemoryMap, Plan, rules};
use crate::graph::{BufferId, Graph, MAX_SRC, TensorId};

/// What the CPU computes in a run.
#[derive(Default)]
pub(super) struct CpuPlan {
    pub(super) nodes: Vec<PlannedNode>,
    pub(super) need: Need,
    /// Of the graph that the nodes belong to.
    version: u64,
    /// Where the nodes' operands and results lie.
    buffers: Vec<PlannedBuffer>,
}

impl Plan for CpuPlan {}

/// A buffer as it was when addresses in it were found.
#[derive(PartialEq, Eq)]
struct PlannedBuffer {
    id: BufferId,
    address: usize,
    size: usize,
    writable: bool,
}

impl PlannedBuffer {
    fn new(id: BufferId, buffer: &dyn Buffer) -> PlannedBuffer {
        PlannedBuffer {
            id,
            address: buffer.host_ptr().map_or(0, |start| start.as_ptr() as usize),
            size: buffer.size(),
            writable: is_writable(buffer),
        }
    }
}

/// True if graphs may write to a buffer of host memory.
pub(super) fn is_writable(buffer: &dyn Buffer) -> bool {
    let host = buffer.as_any().downcast_ref::<HostBuffer>();
    host.is_none_or(HostBuffer::is_writable)
}

impl CpuPlan {
    /// An error unless graph and memory are what the plan was made for: then all its addresses are good.
    pub(super) fn check_fresh(&self, graph: &Graph, memory: &MemoryMap) -> Result<(), BackendError> {
        let in_place = |planned: &PlannedBuffer| {
            let buffer = memory.find(planned.id);
            buffer.is_some_and(|buffer| PlannedBuffer::new(planned.id, &**buffer) == *planned)
        };
        if graph.version() == self.version && self.buffers.iter().all(in_place) {
            return Ok(());
        }
        Err(BackendError::StalePlan {
            device: NAME.to_string(),
        })
    }

    fn note_buffers(&mut self, view: &GraphView<'_>, memory: &MemoryMap, id: TensorId) {
        for id in view.graph.tensor(id).sources().chain([id]) {
            let Some(home) = view.graph.home(id) else { continue };
            // From the end: operands mostly lie where others just did.
            if !self.buffers.iter().rev().any(|known| known.id == home.buffer)
                && let Some(buffer) = memory.find(home.buffer)
            {
                self.buffers.push(PlannedBuffer::new(home.buffer, &**buffer));
            }
        }
    }
}

/// Makes plans; keeps its tables from plan to plan.
pub(super) struct Planner {
    barriers: Barriers,
    accesses: Vec<Access>,
}

impl Planner {
    pub(super) fn new() -> Planner {
        Planner {
            barriers: Barriers::new(),
            // Results, operands and shared scratch memory of two fused nodes.
            accesses: Vec::with_capacity(2 * (MAX_SRC + 2)),
        }
    }

    /// Makes `plan` one for these nodes, on up to `n_threads`. After this, only numbers of rows and experts can be wrong.
    pub(super) fn plan(
        &mut self,
        plan: &mut CpuPlan,
        view: &GraphView<'_>,
        memory: &MemoryMap,
        n_threads: usize,
    ) -> Result<(), BackendError> {
        plan.nodes.clear();
        plan.nodes.reserve(view.nodes.len());
        plan.buffers.clear();
        plan.need = Need::default();
        plan.version = view.graph.version();
        self.barriers.start();
        let not_empty = |id: &TensorId| !view.graph.tensor(*id).ne.contains(&0);
        let mut nodes = view.computing().filter(not_empty).peekable();
        while let Some(id) = nodes.next() {
            self.accesses.clear();
            let mut first = self.plan_node(plan, view, memory, id, n_threads)?;
            let second = nodes.next_if(|&next| {
                first.fusion = fusion(view, memory, id, next).filter(|_| ops::check(view.graph, next).is_ok());
                first.fusion.is_some()
            });
            let second = second.map(|next| self.plan_node(plan, view, memory, next, n_threads));
            let second = second.transpose()?;
            if let Some(second) = &second {
                first.solo &= second.solo;
                plan.need = plan.need.max(norm::add_rms_norm_need(view.graph.tensor(second.id)));
            }
            first.barrier = self.barriers.before(&self.accesses, first.solo);
            plan.nodes.push(first);
            plan.nodes.extend(second);
        }
        Ok(())
    }

    /// Checks a node and finds its operands. Adds to the plan's buffers and scratch memory.
    fn plan_node(
        &mut self,
        plan: &mut CpuPlan,
        view: &GraphView<'_>,
        memory: &MemoryMap,
        id: TensorId,
        n_threads: usize,
    ) -> Result<PlannedNode, BackendError> {
        let graph = view.graph;
        ops::check(graph, id).map_err(|_| rules::unsupported(graph, id))?;
        let need = ops::need(graph, id, n_threads);
        plan.need = plan.need.max(need);
        let mut node = PlannedNode::new(graph, memory, id, &mut self.accesses)?;
        plan.note_buffers(view, memory, id);
        if need.shared > 0 {
            self.accesses.push(Access::SHARED_SCRATCH);
        }
        node.solo = ops::is_small(graph, id);
        Ok(node)
    }
}
