//! Graph: an arena of tensors, and the evaluation order of those needed for the outputs.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use kernels::GgmlType;

use super::edit::Edits;
use super::{BufferSlice, Flags, MAX_SRC, Name, Op, Tensor, TensorId};

/// Arena of tensors, and the evaluation order of the part reachable from the expanded outputs.
///
/// Sources have smaller ids than the tensors computed from them, except for copies inserted later by a
/// scheduler. [`clear`](Graph::clear) keeps allocated capacity, so that rebuilding a graph of equal size does
/// not allocate.
#[derive(Clone, Default, Debug)]
pub struct Graph {
    tensors: Vec<Tensor>,
    pub(super) nodes: Vec<TensorId>,
    leafs: Vec<TensorId>,
    visited: Vec<bool>,
    stack: Vec<(TensorId, usize)>,
    /// Buffers that are reused for reordering nodes.
    pub(super) ordering: (Vec<TensorId>, Vec<bool>),
    pub(super) edits: Edits,
    version: u64,
    identity: GraphId,
}

/// Identity of a graph object, independent of its content. A clone has a new identity.
#[derive(Default, Debug)]
struct GraphId(Arc<()>);

impl Clone for GraphId {
    fn clone(&self) -> GraphId {
        GraphId::default()
    }
}

impl Graph {
    /// Creates an empty graph.
    pub fn new() -> Graph {
        Graph::default()
    }

    /// Removes all tensors but keeps allocated capacity.
    pub fn clear(&mut self) {
        self.tensors.clear();
        self.nodes.clear();
        self.leafs.clear();
        self.visited.clear();
        self.edits.clear();
        self.touch();
    }

    /// Returns a number that changes with every modification. Equal versions imply equal graphs, including
    /// buffer assignments.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Returns a weak reference that identifies this graph object across modifications and expires when the
    /// graph is dropped.
    pub(crate) fn identity(&self) -> Weak<()> {
        Arc::downgrade(&self.identity.0)
    }

    pub(super) fn touch(&mut self) {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        self.version = NEXT.fetch_add(1, Ordering::Relaxed);
    }

    /// Adds a tensor to the arena. Only tensors reachable from an [`expand`](Graph::expand)ed output are
    /// evaluated.
    pub fn push(&mut self, tensor: Tensor) -> TensorId {
        let id = TensorId(u32::try_from(self.tensors.len()).expect("fewer than 2^32 tensors per graph"));
        self.tensors.push(tensor);
        self.visited.push(false);
        self.touch();
        id
    }

    /// Adds a leaf that the caller fills before every compute.
    pub fn input(&mut self, ty: GgmlType, ne: [usize; 4], name: &'static str) -> TensorId {
        let mut t = Tensor::new(
            ty,
            ne,
            Name {
                base: name,
                layer: None,
            },
        );
        t.flags.input = true;
        self.push(t)
    }

    /// Adds a leaf with existing memory (a weight or a cache).
    pub fn external(&mut self, ty: GgmlType, ne: [usize; 4], name: Name, home: BufferSlice, flags: Flags) -> TensorId {
        let mut t = Tensor::new(ty, ne, name);
        t.home = Some(home);
        t.flags = flags;
        self.push(t)
    }

    /// Returns the tensor with this id.
    pub fn tensor(&self, id: TensorId) -> &Tensor {
        &self.tensors[id.index()]
    }

    /// Returns the tensor with this id, for modification.
    pub fn tensor_mut(&mut self, id: TensorId) -> &mut Tensor {
        self.touch();
        &mut self.tensors[id.index()]
    }

    /// Removes the newest tensor of the arena, which must be unreferenced.
    pub(super) fn pop_last(&mut self) {
        self.tensors.pop();
        self.visited.pop();
        self.touch();
    }

    /// Returns the number of tensors in the arena.
    pub fn len(&self) -> usize {
        self.tensors.len()
    }

    /// Returns true if the arena is empty.
    pub fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }

    /// Iterates over all tensor ids in the arena.
    pub fn ids(&self) -> impl Iterator<Item = TensorId> + use<> {
        (0..self.tensors.len() as u32).map(TensorId)
    }

    /// Returns the computed tensors (including views) in evaluation order.
    pub fn nodes(&self) -> &[TensorId] {
        &self.nodes
    }

    /// Returns the leaves reachable from the nodes, in order of first use.
    pub fn leafs(&self) -> &[TensorId] {
        &self.leafs
    }

    /// Appends `output` and its missing dependencies to the evaluation order, sources before their users. May
    /// be called repeatedly; shared subgraphs are appended once.
    ///
    /// The traversal uses an explicit stack, because the depth of a graph grows with the number of layers.
    pub fn expand(&mut self, output: TensorId) {
        if self.visited[output.index()] {
            return;
        }
        self.touch();
        self.visited[output.index()] = true;
        self.stack.push((output, 0));
        while let Some((id, next)) = self.stack.pop() {
            let t = &self.tensors[id.index()];
            // A view depends on the owner of its memory even if the owner is not an operand.
            let child = if next < MAX_SRC {
                t.src[next]
            } else {
                t.view.map(|(v, _)| v)
            };
            if next <= MAX_SRC {
                self.stack.push((id, next + 1));
                if let Some(child) = child
                    && !self.visited[child.index()]
                {
                    self.visited[child.index()] = true;
                    self.stack.push((child, 0));
                }
            } else if t.op == Op::None {
                self.leafs.push(id);
            } else {
                self.nodes.push(id);
            }
        }
    }

    /// Clears the evaluation order but keeps the tensors, so that outputs can be expanded again after a
    /// rewrite.
    pub fn reset_order(&mut self) {
        self.undo_edits();
        self.touch();
        self.nodes.clear();
        self.leafs.clear();
        self.visited.iter_mut().for_each(|v| *v = false);
    }

    /// Returns the tensor that owns the memory of `id`: the source of a view, or `id` itself.
    pub fn memory_owner(&self, id: TensorId) -> TensorId {
        self.tensor(id).view.map_or(id, |(owner, _)| owner)
    }

    /// Returns the location of the data of `id` with views resolved; `None` before allocation.
    pub fn home(&self, id: TensorId) -> Option<BufferSlice> {
        let t = self.tensor(id);
        match t.view {
            None => t.home,
            Some((owner, offset)) => self.tensor(owner).home.map(|h| BufferSlice {
                buffer: h.buffer,
                // On overflow, the offset saturates and is outside every buffer.
                offset: h.offset.saturating_add(offset),
            }),
        }
    }
}

/// Edits by a scheduler.
impl Graph {
    /// Adds a leaf with the type, shape, strides, and layout of `of`, as the destination of a copy.
    pub(crate) fn insert_copy(&mut self, of: TensorId) -> TensorId {
        let original = self.tensor(of);
        let copy = Tensor {
            nb: original.nb,
            layout: original.layout,
            ..Tensor::new(original.ty, original.ne, original.name)
        };
        let id = self.push(copy);
        self.edits.copies.push(id);
        id
    }

    /// Replaces operand `i` of `node`.
    pub(crate) fn redirect(&mut self, node: TensorId, i: usize, to: TensorId) {
        let before = self.tensor(node).source(i);
        self.tensor_mut(node).src[i] = Some(to);
        self.edits.redirected.push((node, i, before));
    }

    /// Assigns a buffer slice found by an allocator.
    pub(crate) fn place(&mut self, id: TensorId, home: BufferSlice) {
        if self.tensor_mut(id).home.replace(home).is_none() {
            let placed = &mut self.edits.placed;
            placed.resize(placed.len().max(id.index() + 1), false);
            placed[id.index()] = true;
        }
    }

    /// Returns true if the tensor had a buffer before allocation, as weights and caches do.
    pub(crate) fn is_external(&self, id: TensorId) -> bool {
        self.tensor(id).home.is_some() && !self.edits.placed.get(id.index()).is_some_and(|&p| p)
    }

    /// Reverts all copies, redirections, and buffer assignments.
    pub(crate) fn undo_edits(&mut self) {
        while let Some((node, i, before)) = self.edits.redirected.pop() {
            self.tensor_mut(node).src[i] = Some(before);
        }
        for id in self.ids() {
            if self.edits.placed.get(id.index()).is_some_and(|&p| p) {
                self.tensor_mut(id).home = None;
            }
        }
        self.edits.placed.clear();
        // A copy that is followed by newer tensors stays in the arena without references.
        while let Some(id) = self.edits.copies.pop() {
            if id.index() + 1 == self.len() {
                self.pop_last();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(g: &mut Graph, a: TensorId, b: TensorId) -> TensorId {
        let mut t = Tensor::new(GgmlType::F32, g.tensor(a).ne, Name::default());
        t.op = Op::Add;
        t.src[0] = Some(a);
        t.src[1] = Some(b);
        g.push(t)
    }

    #[test]
    fn expand_orders_sources_first_and_skips_unused() {
        let mut g = Graph::new();
        let a = g.input(GgmlType::F32, [4, 1, 1, 1], "a");
        let b = g.input(GgmlType::F32, [4, 1, 1, 1], "b");
        let c = add(&mut g, a, b);
        let unused = add(&mut g, c, c);
        let d = add(&mut g, c, a);
        g.expand(d);
        g.expand(d);
        assert_eq!(g.nodes(), [c, d]);
        assert_eq!(g.leafs(), [a, b]);
        g.expand(unused);
        assert_eq!(g.nodes(), [c, d, unused]);
    }

    #[test]
    fn every_change_updates_version() {
        let mut g = Graph::new();
        let mut seen = vec![g.version()];
        let mut changed = |g: &Graph| {
            assert!(!seen.contains(&g.version()));
            seen.push(g.version());
        };
        let a = g.input(GgmlType::F32, [4, 1, 1, 1], "a");
        changed(&g);
        let b = add(&mut g, a, a);
        changed(&g);
        g.expand(b);
        changed(&g);
        let copy = g.clone();
        assert_eq!(copy.version(), g.version());
        assert!(!copy.identity().ptr_eq(&g.identity()));
        g.tensor_mut(b).flags.output = true;
        changed(&g);
        let home = super::super::BufferSlice {
            buffer: super::super::BufferId(0),
            offset: 0,
        };
        g.place(b, home);
        changed(&g);
        g.undo_edits();
        changed(&g);
        g.reset_order();
        changed(&g);
        let identity = g.identity();
        g.clear();
        changed(&g);
        assert!(identity.ptr_eq(&g.identity()));
    }

    #[test]
    fn deep_graphs_do_not_overflow_the_stack() {
        let mut g = Graph::new();
        let mut x = g.input(GgmlType::F32, [1, 1, 1, 1], "x");
        for _ in 0..200_000 {
            x = add(&mut g, x, x);
        }
        g.expand(x);
        assert_eq!(g.nodes().len(), 200_000);
    }
}
