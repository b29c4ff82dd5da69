//! Passes 1 to 4: assign nodes to backends. Each pass is a function over the same tables, and fills in or
//! improves the results of earlier passes.

use std::sync::Arc;

use crate::backend::{BackendError, BufferType, Device, MemoryMap, Usage, same_buffer_type};
use crate::graph::{Graph, Op, Tensor, TensorId};

use super::{BackendId, SchedError};

/// A backend as seen by the passes.
#[derive(Clone)]
pub(super) struct Site {
    pub device: Arc<dyn Device>,
    /// Buffer type for intermediate results.
    pub memory: Arc<dyn BufferType>,
}

impl Site {
    pub fn of(device: &Arc<dyn Device>) -> Site {
        Site {
            device: device.clone(),
            memory: device.buffer_type(),
        }
    }
}

/// Input of the passes, and the assignment that they refine.
pub(super) struct Assigner<'a> {
    pub graph: &'a Graph,
    pub memory: &'a MemoryMap,
    /// Backends by priority. The last backend takes everything that no other backend supports.
    pub sites: &'a [Site],
    pub op_offload: bool,
    /// The user's assignments by tensor, equal to `of` before the first pass. May be shorter than the graph.
    pub user: &'a [Option<BackendId>],
    /// Assigned backend of each tensor.
    pub of: &'a mut [Option<BackendId>],
}

/// Runs all passes in order. Pass 3 may improve the user's assignments; the other passes keep them.
pub(super) fn assign(a: &mut Assigner<'_>) -> Result<(), SchedError> {
    from_memory(a)?;
    expand(a);
    upgrade_and_fill(a);
    leftovers(a)?;
    check_support(a)
}

/// Pass 1: assigns tensors to the backend of their memory, inputs to the last backend, and ops to the backend
/// of their weights.
pub(super) fn from_memory(a: &mut Assigner<'_>) -> Result<(), SchedError> {
    let graph = a.graph;
    for &id in graph.leafs().iter().chain(graph.nodes()) {
        if a.get(id).is_none() {
            a.of[id.index()] = a.backend_from_memory(id)?;
        }
    }
    Ok(())
}

/// Pass 2: assigns nodes without a backend to the backend of their neighbors in evaluation order.
///
/// Backends other than the last spread first, down and then up, so that the last backend computes only nodes
/// between its own weights. Then all backends spread.
pub(super) fn expand(a: &mut Assigner<'_>) {
    let graph = a.graph;
    let last = a.last();
    let spreads_first = |b: BackendId| if b == last { None } else { Some(b) };
    a.sweep(graph.nodes().iter(), spreads_first);
    a.sweep(graph.nodes().iter().rev(), spreads_first);
    a.sweep(graph.nodes().iter(), Some);
    a.sweep(graph.nodes().iter().rev(), Some);
}

/// Pass 3: assigns nodes without a backend to the backend that can read most of their operands. Moves other
/// nodes to a better backend that uses the same memory.
pub(super) fn upgrade_and_fill(a: &mut Assigner<'_>) {
    for &node in a.graph.nodes() {
        if a.graph.tensor(node).op.is_view() {
            continue;
        }
        match a.get(node) {
            Some(current) => {
                if let Some(better) = a.upgrade_of(node, current) {
                    a.set(node, better);
                }
            }
            None if a.graph.tensor(node).view.is_none() => a.of[node.index()] = a.backend_nearest_operands(node),
            None => {}
        }
    }
}

/// Pass 4: assigns views to the backend of their owner, and unassigned operands to the backend of their owner or
/// reader. Assigns the rest to the first backend that supports the op.
pub(super) fn leftovers(a: &mut Assigner<'_>) -> Result<(), SchedError> {
    let graph = a.graph;
    for &node in graph.nodes() {
        let tensor = graph.tensor(node);
        if let Some((owner, _)) = tensor.view
            && a.get(node).is_none()
        {
            a.of[node.index()] = a.get(owner);
        }
        if a.get(node).is_none() {
            let found = a.backends().find(|&b| a.computes(b, node));
            a.set(node, found.ok_or_else(|| unsupported(graph, node))?);
        }
        for source in tensor.sources() {
            if a.get(source).is_none() {
                let owner = graph.memory_owner(source);
                a.of[source.index()] = a.get(owner).or(a.get(node));
            }
        }
    }
    Ok(())
}

/// Checks assignments that were not checked when they were made. A user's assignment, or the owner of the memory that a
/// node writes to, may have selected an unsuitable backend. An unsuitable backend does not support the op or cannot
/// access the memory.
fn check_support(a: &Assigner<'_>) -> Result<(), SchedError> {
    let graph = a.graph;
    for &node in graph.nodes() {
        let tensor = graph.tensor(node);
        let by_user = a.user.get(node.index()).is_some_and(Option::is_some);
        let writes = tensor.op.state_operand().map(|i| tensor.source(i));
        if tensor.op.is_view() || (tensor.view.is_none() && writes.is_none() && !by_user) {
            continue;
        }
        let Some(b) = a.get(node).filter(|&b| a.computes(b, node)) else {
            return Err(unsupported(graph, node));
        };
        if let Some(owner) = writes.or(tensor.view.map(|(owner, _)| owner))
            && !a.can_use(b, owner)
        {
            let memory = match (graph.home(owner), a.get(owner)) {
                (Some(home), _) => a.memory.get(home.buffer)?.buffer_type(),
                (None, at) => &a.site(at.unwrap_or(b)).memory,
            };
            return Err(SchedError::Unreachable {
                tensor: tensor.name.to_string(),
                op: tensor.op.name(),
                buffer_type: memory.name().to_owned(),
            });
        }
    }
    Ok(())
}

impl Assigner<'_> {
    fn get(&self, id: TensorId) -> Option<BackendId> {
        self.of[id.index()]
    }

    fn set(&mut self, id: TensorId, backend: BackendId) {
        self.of[id.index()] = Some(backend);
    }

    fn backends(&self) -> impl Iterator<Item = BackendId> + use<> {
        (0..self.sites.len() as u8).map(BackendId)
    }

    fn last(&self) -> BackendId {
        BackendId((self.sites.len() - 1) as u8)
    }

    fn site(&self, b: BackendId) -> &Site {
        &self.sites[b.index()]
    }

    fn reads(&self, b: BackendId, ty: &dyn BufferType) -> bool {
        self.site(b).device.supports_buffer_type(ty)
    }

    /// Returns true if backend `b` supports the node. Leafs and views need no computation, so every backend
    /// supports them.
    fn computes(&self, b: BackendId, node: TensorId) -> bool {
        let op = self.graph.tensor(node).op;
        op == Op::None || op.is_view() || self.site(b).device.supports_op(self.graph, node, self.memory)
    }

    fn backend_from_memory(&self, id: TensorId) -> Result<Option<BackendId>, SchedError> {
        let tensor = self.graph.tensor(id);
        // A node that updates a state must run where the state is stored: an update of a copy would be lost.
        if let Some(i) = tensor.op.state_operand() {
            let usable = |b: &BackendId| self.can_use(*b, tensor.source(i)) && self.computes(*b, id);
            return Ok(self.backends().find(usable));
        }
        if let Some(home) = self.graph.home(id) {
            let ty = &**self.memory.get(home.buffer)?.buffer_type();
            let found = self.backends().find(|&b| self.reads(b, ty) && self.computes(b, id));
            return found.map(Some).ok_or_else(|| SchedError::Unreachable {
                tensor: tensor.name.to_string(),
                op: tensor.op.name(),
                buffer_type: ty.name().to_owned(),
            });
        }
        // Tensors that the caller fills are filled from host memory.
        if tensor.flags.input || (tensor.op == Op::None && tensor.view.is_none()) {
            return Ok(Some(self.last()));
        }
        Ok(self.backend_of_weights(id, tensor))
    }

    fn backend_of_weights(&self, id: TensorId, tensor: &Tensor) -> Option<BackendId> {
        // The weights of these ops (frequency factors, sinks) are too small to determine where large operands
        // go.
        if matches!(tensor.op, Op::Rope(_) | Op::Attention(_)) {
            return None;
        }
        let ty = tensor
            .sources()
            .find_map(|source| weight_memory(self.graph, self.memory, source))?;
        let at_weights = self.backends().find(|&b| self.reads(b, ty) && self.computes(b, id))?;
        if self.op_offload && at_weights == self.last() && ty.is_host() {
            let wants = |b: &BackendId| self.computes(*b, id) && self.site(*b).device.offload_op(self.graph, id);
            let taker = self.backends().take_while(|&b| b < at_weights).find(wants);
            return taker.or(Some(at_weights));
        }
        Some(at_weights)
    }

    /// Walks over the nodes and assigns the running backend to unassigned nodes. `spreads` returns the
    /// backend to continue with after an assigned node; `None` ends the run.
    fn sweep<'n>(
        &mut self,
        nodes: impl Iterator<Item = &'n TensorId>,
        spreads: impl Fn(BackendId) -> Option<BackendId>,
    ) {
        let mut running = None;
        for &node in nodes {
            let tensor = self.graph.tensor(node);
            if tensor.op.is_view() {
                continue;
            }
            match (self.get(node), running) {
                (Some(b), _) => running = spreads(b),
                // A node that writes to another tensor's memory follows that tensor.
                (None, Some(b)) if tensor.view.is_none() && self.computes(b, node) => self.set(node, b),
                _ => {}
            }
        }
    }

    /// Returns true if backend `b` can read this operand in its current memory, or in the memory of its
    /// current assignment.
    fn can_use(&self, b: BackendId, operand: TensorId) -> bool {
        can_use(self.graph, self.memory, self.sites, self.of, b, operand)
    }

    fn backend_nearest_operands(&self, node: TensorId) -> Option<BackendId> {
        let usable = |b: BackendId| {
            let sources = self.graph.tensor(node).sources();
            sources.filter(|&s| self.can_use(b, s)).count()
        };
        let mut best = None;
        for b in self.backends().filter(|&b| self.computes(b, node)) {
            let n = usable(b);
            if best.is_none_or(|(most, _)| n > most) {
                best = Some((n, b));
            }
        }
        best.map(|(_, b)| b)
    }

    fn upgrade_of(&self, node: TensorId, current: BackendId) -> Option<BackendId> {
        let same_memory = |b: &BackendId| same_buffer_type(&*self.site(*b).memory, &*self.site(current).memory);
        self.backends()
            .take_while(|&b| b < current)
            .filter(same_memory)
            .find(|&b| self.computes(b, node) && self.graph.tensor(node).sources().all(|s| self.can_use(b, s)))
    }
}

/// Implements [`Assigner::can_use`]; shared with the cutting pass.
pub(super) fn can_use(
    graph: &Graph,
    memory: &MemoryMap,
    sites: &[Site],
    of: &[Option<BackendId>],
    b: BackendId,
    operand: TensorId,
) -> bool {
    let device = &sites[b.index()].device;
    if let Some(home) = graph.home(operand) {
        let buffer = memory.get(home.buffer);
        return buffer.is_ok_and(|buffer| device.supports_buffer_type(&**buffer.buffer_type()));
    }
    let assigned = of[graph.memory_owner(operand).index()].or(of[operand.index()]);
    assigned.is_some_and(|at| device.supports_buffer_type(&*sites[at.index()].memory))
}

/// Returns the kind of memory of an operand if it is a model weight.
pub(super) fn weight_memory<'m>(graph: &Graph, memory: &'m MemoryMap, operand: TensorId) -> Option<&'m dyn BufferType> {
    let home = graph.home(operand)?;
    let buffer = memory.get(home.buffer).ok()?;
    match memory.usage(home.buffer) {
        Usage::Weights => Some(&**buffer.buffer_type()),
        _ => None,
    }
}

fn unsupported(graph: &Graph, node: TensorId) -> SchedError {
    let tensor = graph.tensor(node);
    let first = tensor.sources().next().map_or(tensor.ty, |s| graph.tensor(s).ty);
    SchedError::Backend(BackendError::Unsupported {
        op: tensor.op.name(),
        node: tensor.name.to_string(),
        ty: first,
    })
}
