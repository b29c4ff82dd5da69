//! Passes 5 and 6: cut the graph into runs of nodes of one backend, and add copies of tensors that a backend cannot
//! access. The order of computing and copying for the allocator follows.

use std::ops::Range;

use crate::alloc::{AllocStep, Order};
use crate::backend::{MemoryMap, same_buffer_type};
use crate::graph::{Graph, Op, TensorId};

use super::BackendId;
use super::assign::{Site, can_use, weight_memory};

/// Consecutive nodes of one backend.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Split {
    pub backend: BackendId,
    /// Range of the split's nodes in [`Graph::nodes`].
    pub nodes: Range<usize>,
    /// Range of the split's inputs in [`Splits::inputs`].
    pub inputs: Range<usize>,
    /// Bit mask of backends to synchronize with before this split. These backends use memory that may be reused for
    /// this split's results, or they compute operands that are read without a copy. Copies synchronize on their own.
    pub after: u16,
}

/// A tensor that is copied at the start of a split.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct SplitInput {
    pub from: TensorId,
    pub to: TensorId,
}

/// Returns the bit of a backend in [`Split::after`].
pub(super) fn bit(backend: BackendId) -> u16 {
    const { assert!(super::MAX_BACKENDS <= u16::BITS as usize) };
    1 << backend.index()
}

/// The result of cutting. All tables are reused between graphs.
#[derive(Default)]
pub(super) struct Splits {
    pub splits: Vec<Split>,
    pub inputs: Vec<SplitInput>,
    /// Tensors in the allocator's memory that nodes write to.
    written: Vec<TensorId>,
    leafs: Vec<TensorId>,
    steps: Vec<AllocStep>,
    /// Copies by original and backend.
    copies: Vec<Option<TensorId>>,
    /// Originals that have a copy, with the backend of the copy.
    copied: Vec<(TensorId, BackendId)>,
    n_backends: usize,
}

impl Splits {
    /// Returns the order for the allocator.
    pub fn order(&self) -> Order<'_> {
        Order {
            leafs: &self.leafs,
            steps: &self.steps,
        }
    }

    /// Clears the tables for a new graph.
    pub fn begin(&mut self, graph: &Graph, n_backends: usize) {
        self.splits.clear();
        self.inputs.clear();
        self.written.clear();
        self.copied.clear();
        self.copies.clear();
        self.copies.resize(graph.len() * n_backends, None);
        self.n_backends = n_backends;
    }

    /// Returns true for a leaf that only the caller writes and whose memory belongs to the allocator, so that
    /// it retains its contents.
    pub fn is_input(&self, graph: &Graph, id: TensorId) -> bool {
        let tensor = graph.tensor(id);
        let is_leaf = tensor.op == Op::None && tensor.view.is_none();
        is_leaf && !graph.is_external(id) && !self.written.contains(&id)
    }

    /// Returns true if nodes write to leafs that the caller may also write.
    pub fn writes_leafs(&self) -> bool {
        !self.written.is_empty()
    }

    fn copy_of(&self, id: TensorId, b: BackendId) -> Option<TensorId> {
        self.copies[id.index() * self.n_backends + b.index()]
    }

    fn set_copy(&mut self, id: TensorId, b: BackendId, copy: Option<TensorId>) {
        self.copies[id.index() * self.n_backends + b.index()] = copy;
    }
}

/// Pass 5: cuts the graph into splits, redirects operands to their copies, and assigns each copy to its
/// backend.
pub(super) fn cut(
    graph: &mut Graph,
    memory: &MemoryMap,
    sites: &[Site],
    of: &mut Vec<Option<BackendId>>,
    splits: &mut Splits,
) {
    for position in 0..graph.nodes().len() {
        let node = graph.nodes()[position];
        if graph.tensor(node).op.is_view() {
            continue;
        }
        let backend = of[node.index()].expect("passes 1 to 4 assigned every node");
        if starts_split(graph, memory, sites, of, splits, node, backend) {
            splits.start(position, backend, sites);
        }
        let n_sources = graph.tensor(node).sources().count();
        for i in 0..n_sources {
            let source = graph.tensor(node).source(i);
            if can_use(graph, memory, sites, of, backend, source) {
                if weight_memory(graph, memory, source).is_none() {
                    splits.read_directly(of[graph.memory_owner(source).index()].or(of[source.index()]));
                }
                continue;
            }
            let copy = match splits.copy_of(source, backend) {
                Some(copy) => copy,
                None => splits.add_input(graph, of, source, backend),
            };
            graph.redirect(node, i, copy);
        }
        if let Some((owner, _)) = graph.tensor(node).view {
            if !graph.is_external(owner) {
                splits.written.push(owner);
            }
            splits.forget_copies_of(graph, owner);
        }
    }
    if let Some(split) = splits.splits.last_mut() {
        split.nodes.end = graph.nodes().len();
    } else if !graph.nodes().is_empty() {
        // A graph of only views needs no computation; any backend will do.
        splits.start(0, BackendId((sites.len() - 1) as u8), sites);
        splits.splits[0].nodes.end = graph.nodes().len();
    }
}

/// Returns true if a node starts a new split.
///
/// A split starts when the backend changes. A split also starts at a node that needs a weight copied, if the current
/// split already has inputs. The memory of an earlier copied weight can then be reused.
fn starts_split(
    graph: &Graph,
    memory: &MemoryMap,
    sites: &[Site],
    of: &[Option<BackendId>],
    splits: &Splits,
    node: TensorId,
    backend: BackendId,
) -> bool {
    let Some(current) = splits.splits.last() else {
        return true;
    };
    if current.backend != backend {
        return true;
    }
    let brings_weight = |source: TensorId| {
        weight_memory(graph, memory, source).is_some()
            && !can_use(graph, memory, sites, of, backend, source)
            && splits.copy_of(source, backend).is_none()
    };
    !current.inputs.is_empty() && graph.tensor(node).sources().any(brings_weight)
}

/// Pass 6: derives the order of computing and copying.
pub(super) fn order_steps(graph: &Graph, splits: &mut Splits) {
    splits.leafs.clear();
    splits.steps.clear();
    for i in 0..splits.inputs.len() {
        let input = splits.inputs[i];
        // Copies of graph inputs persist, so that the next run copies only changed ranges.
        if splits.is_input(graph, input.from) {
            splits.leafs.push(input.to);
        }
    }
    splits.leafs.extend_from_slice(graph.leafs());
    for split in &splits.splits {
        for input in &splits.inputs[split.inputs.clone()] {
            splits.steps.push(AllocStep::Copy {
                from: input.from,
                to: input.to,
            });
        }
        let nodes = &graph.nodes()[split.nodes.clone()];
        splits.steps.extend(nodes.iter().map(|&node| AllocStep::Compute(node)));
    }
}

impl Splits {
    fn start(&mut self, position: usize, backend: BackendId, sites: &[Site]) {
        let position = match self.splits.last_mut() {
            Some(previous) => {
                previous.nodes.end = position;
                position
            }
            // Leading views belong to the split of the first node that computes.
            None => 0,
        };
        let memory = &*sites[backend.index()].memory;
        let shares = |(i, site): (usize, &Site)| u16::from(same_buffer_type(&*site.memory, memory)) << i;
        let sharing = sites.iter().enumerate().map(shares).sum::<u16>();
        self.splits.push(Split {
            backend,
            nodes: position..position,
            inputs: self.inputs.len()..self.inputs.len(),
            after: sharing & !bit(backend),
        });
    }

    fn read_directly(&mut self, producer: Option<BackendId>) {
        if let (Some(split), Some(producer)) = (self.splits.last_mut(), producer)
            && producer != split.backend
        {
            split.after |= bit(producer);
        }
    }

    fn add_input(
        &mut self,
        graph: &mut Graph,
        of: &mut Vec<Option<BackendId>>,
        from: TensorId,
        backend: BackendId,
    ) -> TensorId {
        let to = graph.insert_copy(from);
        of.resize(graph.len(), Some(backend));
        self.set_copy(from, backend, Some(to));
        self.copied.push((from, backend));
        self.inputs.push(SplitInput { from, to });
        if let Some(split) = self.splits.last_mut() {
            split.inputs.end = self.inputs.len();
        }
        to
    }

    /// Discards the copies of `owner` after a node wrote to its memory.
    fn forget_copies_of(&mut self, graph: &Graph, owner: TensorId) {
        let mut i = 0;
        while i < self.copied.len() {
            let (id, backend) = self.copied[i];
            if graph.memory_owner(id) == owner {
                self.set_copy(id, backend, None);
                self.copied.swap_remove(i);
            } else {
                i += 1;
            }
        }
    }
}
