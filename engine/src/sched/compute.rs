//! Executes splits: waits, copies inputs, computes, and shows nodes to an observer.

use std::ops::{ControlFlow, Range};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::backend::{BackendError, GraphView, Plan, Usage};
use crate::graph::{BufferSlice, Graph, TensorId};

use super::copy::{UsedExperts, expert_ids};
use super::schedule::Schedule;
use super::split::{Split, SplitInput, bit};
use super::{BackendId, Result, SchedError, Scheduler};

/// Observes nodes while a graph is computed.
pub trait Observer: Send {
    /// Returns true to observe this node. Called before the node is computed, including for views.
    ///
    /// Nodes up to the next observed node are computed together, so that observing few nodes is cheap. An
    /// observed node is not fused with the next node.
    fn observes(&mut self, graph: &Graph, node: TensorId) -> bool;

    /// Receives the bytes of an observed node, from its first to its last element, with the tensor's strides.
    /// `Break` stops the computation, which then returns [`BackendError::Cancelled`].
    fn show(&mut self, graph: &Graph, node: TensorId, data: &[u8]) -> ControlFlow<()>;
}

/// Buffers that are reused between computations.
#[derive(Default)]
pub(super) struct Scratch {
    stage: Vec<u8>,
    shown: Vec<u8>,
    experts: UsedExperts,
    /// True if the copies of the current graph's inputs are unchanged since its last run, except for changed
    /// ranges.
    only_changed: bool,
    /// Plans of observed graphs, which are computed piece by piece; indexed by backend.
    pieces: Vec<Option<Box<dyn Plan>>>,
}

/// Cancellation flag of computations that cannot be cancelled; always false.
static NEVER: AtomicBool = AtomicBool::new(false);

impl Scheduler {
    /// Computes a prepared graph. Returns when the graph is done or, for asynchronous backends, enqueued.
    pub fn compute(&mut self, graph: &Graph) -> Result<()> {
        if !self.is_prepared(graph) {
            return Err(SchedError::NotAllocated);
        }
        let mut schedule = self.schedules.take(graph);
        self.inputs.follow(schedule.inputs_at(graph, &self.memory));
        self.scratch.only_changed = self.inputs.begin(graph.version());
        let result = self.compute_splits(graph, &mut schedule);
        self.schedules.restore(schedule);
        if result.is_ok() {
            self.inputs.end(graph.version());
        }
        result
    }

    fn compute_splits(&mut self, graph: &Graph, schedule: &mut Schedule) -> Result<()> {
        self.scratch.experts.clear();
        if self.observer.is_some() {
            schedule.count_uses(graph, &mut self.uses);
        }
        // Bit mask of backends that may still be working on earlier splits.
        let mut busy = 0;
        for i in 0..schedule.splits.splits.len() {
            if self.is_cancelled() {
                return Err(BackendError::Cancelled.into());
            }
            let split = schedule.splits.splits[i].clone();
            let waits_for = busy & split.after;
            for b in (0..self.backends.len() as u8)
                .map(BackendId)
                .filter(|&b| waits_for & bit(b) != 0)
            {
                self.backends[b.index()].synchronize()?;
            }
            busy &= !waits_for;
            for input in split.inputs.clone() {
                self.copy_input(graph, schedule, &split, schedule.splits.inputs[input])?;
            }
            if self.observer.is_some() {
                self.compute_observed(graph, &split)?;
            } else {
                let plan = schedule.plan(i).ok_or(SchedError::NotAllocated)?;
                let cancel = self.cancel.as_deref().unwrap_or(&NEVER);
                self.backends[split.backend.index()].run(plan, graph, &mut self.memory, cancel)?;
            }
            busy |= bit(split.backend);
        }
        Ok(())
    }

    fn is_cancelled(&self) -> bool {
        self.cancel.as_ref().is_some_and(|flag| flag.load(Ordering::Relaxed))
    }

    /// Computes a split in pieces, each of which ends with an observed node.
    fn compute_observed(&mut self, graph: &Graph, split: &Split) -> Result<()> {
        let nodes = &graph.nodes()[split.nodes.clone()];
        let mut start = 0;
        for (i, &node) in nodes.iter().enumerate() {
            let wanted = self.observer.as_mut().is_some_and(|o| o.observes(graph, node));
            if !wanted && i + 1 < nodes.len() {
                continue;
            }
            // A piece that contains only views would not check the flag.
            if self.is_cancelled() {
                return Err(BackendError::Cancelled.into());
            }
            self.compute_piece(graph, split.backend, &nodes[start..=i])?;
            start = i + 1;
            if wanted && self.show(graph, split.backend, node)?.is_break() {
                return Err(BackendError::Cancelled.into());
            }
        }
        Ok(())
    }

    fn compute_piece(&mut self, graph: &Graph, backend: BackendId, nodes: &[TensorId]) -> Result<()> {
        let plans = &mut self.scratch.pieces;
        plans.resize_with(self.backends.len(), || None);
        let old = plans[backend.index()].take();
        let view = GraphView {
            graph,
            nodes,
            uses: &self.uses,
        };
        let mut plan = self.backends[backend.index()].prepare(&view, &self.memory, old)?;
        let cancel = self.cancel.as_deref().unwrap_or(&NEVER);
        self.backends[backend.index()].run(&mut *plan, graph, &mut self.memory, cancel)?;
        self.scratch.pieces[backend.index()] = Some(plan);
        Ok(())
    }

    /// Passes a computed node to the observer.
    fn show(&mut self, graph: &Graph, backend: BackendId, node: TensorId) -> Result<ControlFlow<()>> {
        let (Some(observer), Some(home)) = (&mut self.observer, graph.home(node)) else {
            return Ok(ControlFlow::Continue(()));
        };
        self.backends[backend.index()].synchronize()?;
        let shown = &mut self.scratch.shown;
        shown.resize(graph.tensor(node).nbytes(), 0);
        self.memory.read(home, shown)?;
        Ok(observer.show(graph, node, shown))
    }

    fn copy_input(&mut self, graph: &Graph, schedule: &Schedule, split: &Split, input: SplitInput) -> Result<()> {
        let (from, to) = (home_of(graph, input.from)?, home_of(graph, input.to)?);
        let len = graph.tensor(input.to).nbytes();
        if schedule.splits.is_input(graph, input.from) {
            return self.copy_graph_input(split, from, to, len);
        }
        let source = schedule.backend_of(input.from).unwrap_or(split.backend);
        if self.copy_used_experts(graph, schedule, split, input, source)? {
            return Ok(());
        }
        if self.copy_async(source, split.backend, from, to, len)? {
            return Ok(());
        }
        self.backends[split.backend.index()].synchronize()?;
        self.backends[source.index()].synchronize()?;
        Ok(self.memory.copy(from, to, len, &mut self.scratch.stage)?)
    }

    /// Copies the changed ranges of a graph input.
    fn copy_graph_input(&mut self, split: &Split, from: BufferSlice, to: BufferSlice, len: usize) -> Result<()> {
        match self.inputs.n_changed(from) {
            Some(n) if self.scratch.only_changed => (0..n).try_for_each(|i| {
                let range = self.inputs.changed(from, i).unwrap_or(0..len);
                self.copy_input_range(split, (from, to), range)
            }),
            _ => self.copy_input_range(split, (from, to), 0..len),
        }
    }

    fn copy_input_range(
        &mut self,
        split: &Split,
        (from, to): (BufferSlice, BufferSlice),
        range: Range<usize>,
    ) -> Result<()> {
        let at = |home: BufferSlice| BufferSlice {
            offset: home.offset + range.start,
            ..home
        };
        if let Some(data) = self.inputs.bytes(from, range.clone()) {
            let target = self.memory.get_mut(to.buffer)?;
            if self.backends[split.backend.index()].write_async(target, at(to).offset, data)? {
                return Ok(());
            }
        }
        // The caller may overwrite the input as soon as this returns, so the copy cannot be deferred.
        self.backends[split.backend.index()].synchronize()?;
        Ok(self
            .memory
            .copy(at(from), at(to), range.len(), &mut self.scratch.stage)?)
    }

    fn copy_async(
        &mut self,
        source: BackendId,
        target: BackendId,
        from: BufferSlice,
        to: BufferSlice,
        len: usize,
    ) -> Result<bool> {
        let Ok([source, target]) = self.backends.get_disjoint_mut([source.index(), target.index()]) else {
            return Ok(false);
        };
        let (from_buffer, to_buffer) = self.memory.pair(from.buffer, to.buffer)?;
        let (from, to) = ((from_buffer, from.offset), (to_buffer, to.offset));
        Ok(target.copy_from_async(&mut **source, from, to, len)?)
    }

    /// Copies only the experts in use, if the input is a mixture-of-experts weight in host memory. Returns
    /// false otherwise.
    fn copy_used_experts(
        &mut self,
        graph: &Graph,
        schedule: &Schedule,
        split: &Split,
        input: SplitInput,
        source: BackendId,
    ) -> Result<bool> {
        let (from, to) = (home_of(graph, input.from)?, home_of(graph, input.to)?);
        let in_host_memory = self.memory.get(from.buffer)?.buffer_type().is_host();
        let is_weight = in_host_memory && self.memory.usage(from.buffer) == Usage::Weights;
        let is_plain = graph.tensor(input.from).layout.is_plain();
        if !is_weight || !is_plain {
            return Ok(false);
        }
        let first_node = first_computing(graph, &graph.nodes()[split.nodes.clone()]);
        let Some(ids) = first_node.and_then(|node| expert_ids(graph, node, input.to)) else {
            return Ok(false);
        };
        self.backends[split.backend.index()].synchronize()?;
        self.backends[source.index()].synchronize()?;
        // The ids may be an input of this split that is not copied yet; in that case, read the original.
        let inputs = &schedule.splits.inputs[split.inputs.clone()];
        let original = inputs.iter().find(|i| i.to == ids).map(|i| i.from);
        let ids = original.unwrap_or(ids);
        let ids_backend = schedule.backend_of(ids).unwrap_or(split.backend);
        self.backends[ids_backend.index()].synchronize()?;

        let tensor = graph.tensor(input.from);
        let (n_expert, expert_bytes) = (tensor.ne[2], tensor.nb[2]);
        let Scratch { experts, stage, .. } = &mut self.scratch;
        experts.read(graph, &self.memory, ids, home_of(graph, ids)?, n_expert)?;
        for (offset, len) in experts.ranges(expert_bytes) {
            let at = |home: BufferSlice| BufferSlice {
                offset: home.offset.saturating_add(offset),
                ..home
            };
            let len = len.min(tensor.nbytes().saturating_sub(offset));
            self.memory.copy(at(from), at(to), len, stage)?;
        }
        Ok(true)
    }
}

fn first_computing(graph: &Graph, nodes: &[TensorId]) -> Option<TensorId> {
    nodes.iter().copied().find(|&node| graph.tensor(node).op.computes())
}

fn home_of(graph: &Graph, id: TensorId) -> Result<BufferSlice> {
    graph.home(id).ok_or_else(|| SchedError::NoHome {
        tensor: graph.tensor(id).name.to_string(),
    })
}
