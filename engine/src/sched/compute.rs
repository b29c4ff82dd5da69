//! Carrying splits out: waiting, copying inputs, computing, showing nodes to an observer.

use std::ops::ControlFlow;

use crate::backend::{BackendError, Usage};
use crate::graph::{Graph, Home, Op, TensorId};

use super::copy::{UsedExperts, expert_ids};
use super::split::{Split, SplitInput, bit};
use super::{BackendId, Result, SchedError, Scheduler};

/// Looks at nodes while a graph is computed.
pub trait Observer: Send {
    /// Is the data of this node wanted? Asked before it is computed, views included. Nodes up to the next wanted one are
    /// computed together, so wanting few costs little.
    fn wants(&mut self, graph: &Graph, node: TensorId) -> bool;

    /// The bytes of a wanted node, from its first to its last element, strides as the tensor says. Breaking stops the
    /// computation, which then ends with [`BackendError::Cancelled`].
    fn show(&mut self, graph: &Graph, node: TensorId, data: &[u8]) -> ControlFlow<()>;
}

/// Memory that is kept from one computation to the next.
#[derive(Default)]
pub(super) struct Scratch {
    stage: Vec<u8>,
    shown: Vec<u8>,
    experts: UsedExperts,
}

impl Scheduler {
    /// Computes the prepared graph. Returns when done, or, if backends are asynchronous, when all is queued.
    pub fn compute(&mut self, graph: &Graph) -> Result<()> {
        if !self.is_prepared(graph) {
            return Err(SchedError::NotAllocated);
        }
        self.scratch.experts.clear();
        // Backends, as bits, that may still be at work on earlier splits.
        let mut at_work = 0;
        for i in 0..self.splits.splits.len() {
            if self.cancel.as_ref().is_some_and(|cancel| cancel()) {
                return Err(BackendError::Cancelled.into());
            }
            let split = self.splits.splits[i].clone();
            let waits_for = at_work & split.after;
            for b in (0..self.backends.len() as u8)
                .map(BackendId)
                .filter(|&b| waits_for & bit(b) != 0)
            {
                self.wait_on_host(b)?;
            }
            at_work &= !waits_for;
            for input in split.inputs.clone() {
                self.copy_input(graph, &split, self.splits.inputs[input])?;
            }
            self.compute_split(graph, &split)?;
            self.record(split.backend)?;
            at_work |= bit(split.backend);
        }
        Ok(())
    }

    fn compute_split(&mut self, graph: &Graph, split: &Split) -> Result<()> {
        let nodes = &graph.nodes()[split.nodes.clone()];
        let backend = &mut self.backends[split.backend.index()];
        let Some(observer) = &mut self.observer else {
            return Ok(backend.compute(graph, nodes, &mut self.memory)?);
        };
        let mut start = 0;
        for (i, &node) in nodes.iter().enumerate() {
            let wanted = observer.wants(graph, node);
            if !wanted && i + 1 < nodes.len() {
                continue;
            }
            backend.compute(graph, &nodes[start..=i], &mut self.memory)?;
            start = i + 1;
            if let Some(home) = graph.home(node).filter(|_| wanted) {
                backend.synchronize()?;
                let shown = &mut self.scratch.shown;
                shown.resize(graph.tensor(node).nbytes(), 0);
                self.memory.read(home, shown)?;
                if observer.show(graph, node, shown).is_break() {
                    return Err(BackendError::Cancelled.into());
                }
            }
        }
        Ok(())
    }

    fn copy_input(&mut self, graph: &Graph, split: &Split, input: SplitInput) -> Result<()> {
        let copy = input.copy(self.slot);
        let (from, to) = (home_of(graph, input.from)?, home_of(graph, copy)?);
        let len = graph.tensor(copy).nbytes();
        if graph.tensor(input.from).op == Op::None && !graph.is_external(input.from) {
            // The caller may overwrite it as soon as this returns, so the copy cannot be left for later.
            self.wait_on_host(split.backend)?;
            return Ok(self.memory.copy(from, to, len, &mut self.scratch.stage)?);
        }
        self.wait_on_device(split.backend)?;
        let source = self.backend_of(input.from).unwrap_or(split.backend);
        if self.copy_used_experts(graph, split, input, source)? {
            return Ok(());
        }
        if self.copy_async(source, split.backend, from, to, len)? {
            return Ok(());
        }
        self.backends[source.index()].synchronize()?;
        self.wait_on_host(split.backend)?;
        Ok(self.memory.copy(from, to, len, &mut self.scratch.stage)?)
    }

    fn copy_async(&mut self, source: BackendId, target: BackendId, from: Home, to: Home, len: usize) -> Result<bool> {
        let Ok([source, target]) = self.backends.get_disjoint_mut([source.index(), target.index()]) else {
            return Ok(false);
        };
        let (from_buffer, to_buffer) = self.memory.pair(from.buffer, to.buffer)?;
        let (from, to) = ((from_buffer, from.offset), (to_buffer, to.offset));
        Ok(target.copy_from_async(&mut **source, from, to, len)?)
    }

    /// Of a mixture's weights in host memory only the experts that were chosen are copied. False if this is no such case.
    fn copy_used_experts(
        &mut self,
        graph: &Graph,
        split: &Split,
        input: SplitInput,
        source: BackendId,
    ) -> Result<bool> {
        let copy = input.copy(self.slot);
        let first_node = first_computing(graph, &graph.nodes()[split.nodes.clone()]);
        let (from, to) = (home_of(graph, input.from)?, home_of(graph, copy)?);
        let in_host_memory = self.memory.get(from.buffer)?.buffer_type().is_host();
        let is_weight = in_host_memory && self.memory.usage(from.buffer) == Usage::Weights;
        let is_plain = graph.tensor(input.from).layout.is_plain();
        let Some(ids) = first_node
            .and_then(|node| expert_ids(graph, node, copy))
            .filter(|_| is_weight && is_plain)
        else {
            return Ok(false);
        };
        self.backends[source.index()].synchronize()?;
        // The ids themselves may be an input of this split that was not copied yet: then the original is read.
        let inputs = &self.splits.inputs[split.inputs.clone()];
        let original = inputs.iter().find(|i| i.copy(self.slot) == ids).map(|i| i.from);
        let ids = original.unwrap_or(ids);
        let ids_backend = self.backend_of(ids).unwrap_or(split.backend);
        self.backends[ids_backend.index()].synchronize()?;
        self.wait_on_host(split.backend)?;

        let tensor = graph.tensor(input.from);
        let (n_expert, expert_bytes) = (tensor.ne[2], tensor.nb[2]);
        let Scratch { experts, stage, .. } = &mut self.scratch;
        experts.read(graph, &self.memory, ids, home_of(graph, ids)?, n_expert)?;
        for (offset, len) in experts.ranges(expert_bytes) {
            let at = |home: Home| Home {
                offset: home.offset.saturating_add(offset),
                ..home
            };
            let len = len.min(tensor.nbytes().saturating_sub(offset));
            self.memory.copy(at(from), at(to), len, stage)?;
        }
        Ok(true)
    }

    /// Blocks until a backend is done with this slot's last use of it.
    fn wait_on_host(&mut self, backend: BackendId) -> Result<()> {
        match &self.events[event_index(backend, self.n_copies, self.slot)] {
            Some(event) => Ok(event.synchronize()?),
            None => Ok(self.backends[backend.index()].synchronize()?),
        }
    }

    /// Makes what is queued on a backend from now on wait for this slot's last use of it.
    fn wait_on_device(&mut self, backend: BackendId) -> Result<()> {
        match &self.events[event_index(backend, self.n_copies, self.slot)] {
            Some(event) => Ok(self.backends[backend.index()].wait_event(&**event)?),
            None => Ok(self.backends[backend.index()].synchronize()?),
        }
    }

    fn record(&mut self, backend: BackendId) -> Result<()> {
        if let Some(event) = &self.events[event_index(backend, self.n_copies, self.slot)] {
            self.backends[backend.index()].record_event(&**event)?;
        }
        Ok(())
    }
}

fn event_index(backend: BackendId, n_copies: usize, slot: usize) -> usize {
    backend.index() * n_copies + slot
}

fn first_computing(graph: &Graph, nodes: &[TensorId]) -> Option<TensorId> {
    let computes = |node: &&TensorId| {
        let op = graph.tensor(**node).op;
        op != Op::None && !op.is_view()
    };
    nodes.iter().find(computes).copied()
}

fn home_of(graph: &Graph, id: TensorId) -> Result<Home> {
    graph.home(id).ok_or_else(|| SchedError::NoHome {
        tensor: graph.tensor(id).name.to_string(),
    })
}
