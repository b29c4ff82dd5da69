//! Which nodes are computed in one go: a pass over the nodes of a plan, by what they are and where their operands lie. Architectures know nothing of it.
//!
//! A step takes the place of its first node, so its other nodes are computed earlier than their order says. That is right where none of the nodes in
//! between touches what they write, or writes what they read. Results of products of the same columns, of which the allocator takes each to be gone
//! when the next is written, are moved to memory of their own.

mod accesses;
mod heads;
mod products;

use std::collections::HashMap;
use std::ops::Range;

use kernels::{GgmlType, Precision};

use super::buffer::CudaBuffer;
use super::ops::{self, Attended, MAX_ADDED, Normed, Step};
use crate::backend::{GraphView, MemoryMap};
use crate::graph::{Graph, Op, Tensor, TensorId};

/// Results that lie in scratch memory, by the byte at which they begin there.
pub(super) type Moved = HashMap<TensorId, usize>;

/// Nodes that are looked at for what belongs to a step.
const NEAR: usize = 16;

/// Bytes of results that are moved at a time at most: those of few columns are less.
const MAX_MOVED: usize = 4 << 20;

/// What a split is computed by.
#[derive(Default)]
pub(super) struct Steps {
    pub(super) steps: Vec<Step>,
    pub(super) moved: Moved,
    /// Bytes of scratch memory for what is moved.
    pub(super) moved_bytes: usize,
}

/// Finds the steps of some nodes, all of which were checked.
pub(super) fn steps(view: &GraphView<'_>, memory: &MemoryMap, precision: Precision) -> Steps {
    let mut pass = Pass::new(view, memory, precision);
    for i in 0..pass.nodes.len() {
        if !pass.taken[i] {
            let step = pass.step(i);
            pass.found.steps.push(step);
        }
    }
    pass.found
}

/// What is known of the nodes.
struct Pass<'a> {
    graph: &'a Graph,
    view: &'a GraphView<'a>,
    memory: &'a MemoryMap,
    precision: Precision,
    /// Those that compute something, in order.
    nodes: Vec<TensorId>,
    positions: HashMap<TensorId, usize>,
    /// Nodes, views too, that have a tensor as their operand: each as often as it has.
    readers: HashMap<TensorId, Vec<TensorId>>,
    /// Nodes of steps that were found.
    taken: Vec<bool>,
    /// Where the last reader of what was moved stands.
    moved_until: usize,
    /// Bytes that are in use where results are moved.
    moved_bytes: usize,
    found: Steps,
}

impl<'a> Pass<'a> {
    fn new(view: &'a GraphView<'a>, memory: &'a MemoryMap, precision: Precision) -> Pass<'a> {
        let nodes: Vec<TensorId> = view.computing().collect();
        let mut readers: HashMap<TensorId, Vec<TensorId>> = HashMap::new();
        for &node in view.nodes {
            for source in view.graph.tensor(node).sources() {
                readers.entry(source).or_default().push(node);
            }
        }
        Pass {
            graph: view.graph,
            view,
            memory,
            precision,
            positions: nodes.iter().enumerate().map(|(i, &id)| (id, i)).collect(),
            taken: vec![false; nodes.len()],
            readers,
            nodes,
            moved_until: 0,
            moved_bytes: 0,
            found: Steps::default(),
        }
    }

    /// The step that begins with node `i`, whose nodes are then taken.
    fn step(&mut self, i: usize) -> Step {
        let node = self.graph.tensor(self.nodes[i]);
        let found = match node.op {
            Op::MulMat | Op::MulMatId if ops::has_few_columns(self.graph, node) => self.products(i),
            Op::Rope(_) => self.heads(i),
            Op::RmsNorm { .. } => self.heads(i).or_else(|| self.normed(i)),
            Op::Add => self.normed(i),
            Op::Attention(_) => self.attended(i),
            _ => None,
        };
        match found {
            Some((step, members)) => {
                members.into_iter().for_each(|at| self.taken[at] = true);
                step
            }
            None => Step::Node(self.nodes[i]),
        }
    }

    fn tensor(&self, i: usize) -> &'a Tensor {
        self.graph.tensor(self.nodes[i])
    }

    /// Positions of nodes from `i` on that no step has yet, as far as they are near.
    fn near(&self, i: usize) -> impl Iterator<Item = usize> + '_ {
        (i..self.nodes.len()).take(NEAR).filter(|&at| !self.taken[at])
    }

    /// The nodes that read a result or views of it; `None` if others do, too.
    fn readers_of(&self, id: TensorId) -> Option<Vec<usize>> {
        let mut found = Vec::new();
        let mut left = vec![id];
        while let Some(id) = left.pop() {
            let readers = self.readers.get(&id).map_or(&[][..], |readers| readers);
            if readers.len() != self.view.uses.n_readers(id) {
                return None;
            }
            for reader in readers {
                match self.positions.get(reader) {
                    Some(&at) => found.push(at),
                    None => left.push(*reader),
                }
            }
        }
        Some(found)
    }

    /// The one node that reads a result, which no step has yet.
    fn only_reader(&self, id: TensorId) -> Option<usize> {
        match self.readers_of(id)?[..] {
            [at] if !self.taken[at] => Some(at),
            _ => None,
        }
    }

    /// A norm, with the sum before it if that is node `i`, and with the rounding that products ask for.
    fn normed(&self, i: usize) -> Option<(Step, Vec<usize>)> {
        let (at, sum) = match self.tensor(i).op {
            Op::RmsNorm { .. } => (i, None),
            _ => (self.norm_of_sum(i)?, Some(self.nodes[i])),
        };
        let norm = self.nodes[at];
        let rounds = self.rounded_rows(norm, at).is_some();
        if sum.is_none() && !rounds {
            return None;
        }
        let stores_sum = sum.is_some_and(|sum| self.readers_of(sum).is_none_or(|readers| readers.len() > 1));
        if let Some(sum) = sum
            && !self.sum_may_be_normed(sum, norm, stores_sum)
        {
            return None;
        }
        let step = Step::Normed(Normed {
            norm,
            sum,
            stores_sum,
            rounds,
        });
        Some((step, if sum.is_some() { vec![i, at] } else { vec![at] }))
    }

    /// Where the norm of the sum at `i` stands, if it can be computed with it.
    fn norm_of_sum(&self, i: usize) -> Option<usize> {
        let (id, sum) = (self.nodes[i], self.tensor(i));
        let (a, b) = (self.graph.tensor(sum.source(0)), self.graph.tensor(sum.source(1)));
        let suits = b.ty == GgmlType::F32 && b.ne[0] == sum.ne[0] && sum.ne[0] <= MAX_ADDED && a.ne == sum.ne;
        let is_norm = |&at: &usize| {
            let t = self.tensor(at);
            matches!(t.op, Op::RmsNorm { .. }) && t.src[0] == Some(id) && t.src[1] != Some(id)
        };
        // Nothing stands in between.
        self.near(i + 1).next().filter(|at| suits && is_norm(at))
    }

    /// Every block computes a row of both, and a thread stores an element of the sum where it loaded it.
    fn sum_may_be_normed(&self, sum: TensorId, norm: TensorId, stores_sum: bool) -> bool {
        let operands = [self.graph.tensor(sum).source(0), self.graph.tensor(sum).source(1)];
        let weight = self.graph.tensor(norm).src[1];
        let stores = [stores_sum.then_some(sum), Some(norm)];
        let mut stores = stores.into_iter().flatten();
        let is_fine = stores.all(|to| {
            operands.iter().all(|&from| self.is_apart_or_same(to, from)) && weight.is_none_or(|w| self.is_apart(to, w))
        });
        is_fine && (!stores_sum || self.is_apart(sum, norm))
    }

    /// Attention with the rounding of its results, where a product reads them next.
    fn attended(&self, i: usize) -> Option<(Step, Vec<usize>)> {
        let attention = self.nodes[i];
        let rows = self.rounded_rows(attention, i)?;
        let (t, u) = (self.graph.tensor(attention), self.graph.tensor(rows));
        let is_whole = u.view.is_none_or(|(_, offset)| offset == 0) && u.ne == [t.ne[0] * t.ne[1], t.ne[2], 1, 1];
        let may = is_whole && t.is_contiguous() && u.is_contiguous() && t.ne[0].is_multiple_of(ops::ROUNDED_TOGETHER);
        may.then(|| (Step::Attended(Attended { attention, rows }), vec![i]))
    }

    /// What the next product that reads the result of node `i` takes as integers: that or a view of it.
    fn rounded_rows(&self, id: TensorId, i: usize) -> Option<TensorId> {
        let owner = |id: TensorId| self.graph.tensor(id).view.map_or(id, |(owner, _)| owner);
        let mut products = self.near(i + 1).map(|at| self.tensor(at)).filter(|t| {
            let multiplies = matches!(t.op, Op::MulMat | Op::MulMatId);
            multiplies && t.src[1].is_some_and(|x| owner(x) == id)
        });
        let product = products.next()?;
        let (weights, address) = (self.graph.tensor(product.source(0)), self.address(product.source(0))?);
        let takes = ops::takes_integers(self.precision, weights, address) && ops::has_few_columns(self.graph, product);
        product.src[1].filter(|_| takes)
    }

    /// Address of a tensor's first byte.
    fn address(&self, id: TensorId) -> Option<u64> {
        let home = self.graph.home(id)?;
        let buffer = self.memory.get(home.buffer).ok()?;
        let ours = buffer.as_any().downcast_ref::<CudaBuffer>()?;
        Some(ours.memory().address() + home.offset as u64)
    }
}
