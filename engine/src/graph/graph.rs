//! The graph: an arena of tensors and, for those that some output needs, the order of evaluation.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use kernels::GgmlType;

use super::edit::Edits;
use super::{Flags, Home, MAX_SRC, Name, Op, Tensor, TensorId};

/// Tensors by id, and the evaluation order of the part reachable from the expanded outputs.
///
/// Sources always have smaller ids than the tensors computed from them, except for copies that a scheduler inserts later.
/// Clearing keeps the memory, so that rebuilding a graph of the same size allocates nothing.
#[derive(Clone, Default, Debug)]
pub struct Graph {
    tensors: Vec<Tensor>,
    pub(super) nodes: Vec<TensorId>,
    leafs: Vec<TensorId>,
    visited: Vec<bool>,
    stack: Vec<(TensorId, usize)>,
    /// Room for another order of the nodes, and for which of them it has.
    pub(super) ordering: (Vec<TensorId>, Vec<bool>),
    pub(super) edits: Edits,
    version: u64,
    identity: Identity,
}

/// Tells a graph from all others, whatever is done to it. A clone is another graph.
#[derive(Default, Debug)]
struct Identity(Arc<()>);

impl Clone for Identity {
    fn clone(&self) -> Identity {
        Identity::default()
    }
}

impl Graph {
    /// An empty graph.
    pub fn new() -> Graph {
        Graph::default()
    }

    /// Forgets all tensors but keeps the memory.
    pub fn clear(&mut self) {
        self.tensors.clear();
        self.nodes.clear();
        self.leafs.clear();
        self.visited.clear();
        self.edits.clear();
        self.touch();
    }

    /// A number that every change of the graph changes. Graphs of equal versions are equal, in the homes of their tensors too.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// A mark of this graph object, the same through all changes, clearing included. It is dead when the graph is dropped.
    pub(crate) fn identity(&self) -> Weak<()> {
        Arc::downgrade(&self.identity.0)
    }

    pub(super) fn touch(&mut self) {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        self.version = NEXT.fetch_add(1, Ordering::Relaxed);
    }

    /// Adds a tensor to the arena. It is evaluated only if it is reachable from an [`expand`](Graph::expand)ed one.
    pub fn push(&mut self, tensor: Tensor) -> TensorId {
        let id = TensorId(u32::try_from(self.tensors.len()).expect("fewer than 2^32 tensors"));
        self.tensors.push(tensor);
        self.visited.push(false);
        self.touch();
        id
    }

    /// A leaf that the caller fills before compute.
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

    /// A leaf whose bytes exist already (a weight or a cache).
    pub fn external(&mut self, ty: GgmlType, ne: [usize; 4], name: Name, home: Home, flags: Flags) -> TensorId {
        let mut t = Tensor::new(ty, ne, name);
        t.home = Some(home);
        t.flags = flags;
        self.push(t)
    }

    /// The tensor with this id.
    pub fn tensor(&self, id: TensorId) -> &Tensor {
        &self.tensors[id.index()]
    }

    /// The tensor with this id, for writing.
    pub fn tensor_mut(&mut self, id: TensorId) -> &mut Tensor {
        self.touch();
        &mut self.tensors[id.index()]
    }

    /// Drops the newest tensor of the arena, which nothing refers to.
    pub(super) fn pop_last(&mut self) {
        self.tensors.pop();
        self.visited.pop();
        self.touch();
    }

    /// Number of tensors in the arena.
    pub fn len(&self) -> usize {
        self.tensors.len()
    }

    /// True if there are no tensors.
    pub fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }

    /// Every tensor id of the arena.
    pub fn ids(&self) -> impl Iterator<Item = TensorId> + use<> {
        (0..self.tensors.len() as u32).map(TensorId)
    }

    /// Computed tensors (views included) in evaluation order.
    pub fn nodes(&self) -> &[TensorId] {
        &self.nodes
    }

    /// Leafs reachable from the nodes, in the order they were met.
    pub fn leafs(&self) -> &[TensorId] {
        &self.leafs
    }

    /// Appends `output` and everything it needs, not yet present, to the evaluation order: sources before their users,
    /// in the order of the operands. May be called repeatedly; shared parts are appended once. Without recursion, since
    /// the depth of a graph grows with the number of layers.
    pub fn expand(&mut self, output: TensorId) {
        if self.visited[output.index()] {
            return;
        }
        self.touch();
        self.visited[output.index()] = true;
        self.stack.push((output, 0));
        while let Some((id, next)) = self.stack.pop() {
            let t = &self.tensors[id.index()];
            // A view depends on its memory's owner even if that is not an operand.
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

    /// Forgets the evaluation order but keeps the tensors, so that outputs can be expanded anew after a rewrite.
    pub fn reset_order(&mut self) {
        self.undo_edits();
        self.touch();
        self.nodes.clear();
        self.leafs.clear();
        self.visited.iter_mut().for_each(|v| *v = false);
    }

    /// The tensor that owns the memory of `id`: itself, or its view source.
    pub fn memory_owner(&self, id: TensorId) -> TensorId {
        self.tensor(id).view.map_or(id, |(owner, _)| owner)
    }

    /// Where the bytes of `id` lie, views resolved. `None` before allocation.
    pub fn home(&self, id: TensorId) -> Option<Home> {
        let t = self.tensor(id);
        match t.view {
            None => t.home,
            Some((owner, offset)) => self.tensor(owner).home.map(|h| Home {
                buffer: h.buffer,
                // Beyond every buffer if the sum is.
                offset: h.offset.saturating_add(offset),
            }),
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
    fn expand_orders_sources_first_and_leaves_out_what_is_not_needed() {
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
    fn every_change_gives_a_new_version() {
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
        let home = super::super::Home {
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
