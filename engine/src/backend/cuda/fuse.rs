//! Fusion: groups the nodes of a plan into steps, judging by their ops and the locations of their operands.
//! Architecture definitions are not involved.
//!
//! A step runs at the position of its first node, so its other nodes run earlier than in the graph. This is
//! valid if no node in between reads or writes memory that these nodes write, or writes memory that they
//! read. The allocator may have placed results of fused matmuls over each other; such results are relocated
//! to scratch memory.

mod accesses;
mod experts;
mod heads;
mod matmul;
mod pass;

use kernels::{GgmlType, Precision};

use self::pass::FusionPass;
pub(super) use self::pass::{ScratchOffsets, Steps};
use super::gpu::Gpu;
use super::ops::{self, MAX_ADDED, Normed, QuantizedAttention, Step};
use crate::backend::{GraphView, MemoryMap};
use crate::graph::{Op, TensorId, Unary};

/// Finds the steps for a list of nodes, all of which passed `ops::check`.
pub(super) fn steps(view: &GraphView<'_>, memory: &MemoryMap, precision: Precision, gpu: Gpu) -> Steps {
    let mut pass = FusionPass::new(view, memory, precision, gpu);
    for i in 0..pass.nodes.len() {
        if !pass.taken[i] {
            let step = pass.step(i);
            pass.found.steps.push(step);
        }
    }
    pass.found
}

impl FusionPass<'_> {
    /// Finds the step that begins with node `i`, and marks its nodes as taken.
    fn step(&mut self, i: usize) -> Step {
        let node = self.graph.tensor(self.nodes[i]);
        let found = match node.op {
            Op::MulMat | Op::MulMatId if self.has_few_columns(node) => self.products(i),
            Op::Rope(_) => self.heads(i),
            Op::RmsNorm { .. } => self.heads(i).or_else(|| self.normed(i)),
            Op::Add => self.normed(i).or_else(|| self.routed(i)),
            Op::SoftMax { .. } | Op::Unary(Unary::Sigmoid | Unary::Softplus) | Op::TopK { .. } => self.routed(i),
            Op::Mul => self.weighted_sum(i),
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

    /// Finds a step with a norm: optionally the sum before it, if that is node `i`, and the quantization for
    /// matmuls after it.
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

    /// Returns the position of the norm of the sum at `i` if they can be fused.
    fn norm_of_sum(&self, i: usize) -> Option<usize> {
        let (id, sum) = (self.nodes[i], self.tensor(i));
        let (a, b) = (self.graph.tensor(sum.source(0)), self.graph.tensor(sum.source(1)));
        let suits = b.ty == GgmlType::F32 && b.ne[0] == sum.ne[0] && sum.ne[0] <= MAX_ADDED && a.ne == sum.ne;
        let is_norm = |at: usize| {
            let t = self.tensor(at);
            matches!(t.op, Op::RmsNorm { .. }) && t.src[0] == Some(id) && t.src[1] != Some(id)
        };
        // The norm must directly follow the sum.
        let next = self.near(i + 1).next()?;
        if suits && is_norm(next) { Some(next) } else { None }
    }

    /// Checks that the memory of a sum and its norm permits fusion. Each block computes a row of both, and a
    /// thread stores an element of the sum at the address that it loaded from.
    fn sum_may_be_normed(&self, sum: TensorId, norm: TensorId, stores_sum: bool) -> bool {
        let operands = [self.graph.tensor(sum).source(0), self.graph.tensor(sum).source(1)];
        let weight = self.graph.tensor(norm).src[1];
        let may_store = |to: TensorId| {
            operands.iter().all(|&from| self.is_disjoint_or_same(to, from))
                && weight.is_none_or(|w| self.is_disjoint(to, w))
        };
        may_store(norm) && (!stores_sum || (may_store(sum) && self.is_disjoint(sum, norm)))
    }

    /// Finds a step with attention and the quantization of its result, if a matmul reads it next.
    fn attended(&self, i: usize) -> Option<(Step, Vec<usize>)> {
        let attention = self.nodes[i];
        let rows = self.rounded_rows(attention, i)?;
        let (t, u) = (self.graph.tensor(attention), self.graph.tensor(rows));
        let is_whole = u.view.is_none_or(|(_, offset)| offset == 0) && u.ne == [t.ne[0] * t.ne[1], t.ne[2], 1, 1];
        let has_groups = t.ne[0].is_multiple_of(ops::ROUNDED_TOGETHER);
        if !is_whole || !t.is_contiguous() || !u.is_contiguous() || !has_groups {
            return None;
        }
        let step = Step::QuantizedAttention(QuantizedAttention { attention, rows });
        Some((step, vec![i]))
    }

    /// Returns the tensor that the next matmul reading the result of node `i` takes as integers: the result
    /// or a view of it.
    fn rounded_rows(&self, id: TensorId, i: usize) -> Option<TensorId> {
        let owner = |id: TensorId| self.graph.tensor(id).view.map_or(id, |(owner, _)| owner);
        let mut products = self.near(i + 1).map(|at| self.tensor(at)).filter(|t| {
            let multiplies = matches!(t.op, Op::MulMat | Op::MulMatId);
            multiplies && t.src[1].is_some_and(|x| owner(x) == id)
        });
        let product = products.next()?;
        let (weights, address) = (self.graph.tensor(product.source(0)), self.address(product.source(0))?);
        if ops::takes_integers(self.precision, weights, address) && self.has_few_columns(product) {
            product.src[1]
        } else {
            None
        }
    }
}
