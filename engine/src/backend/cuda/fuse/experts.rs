//! Fusion of the selection of experts, and of the weighted sum of their results.

use kernels::GgmlType;

use super::super::ops::{Gate, MAX_EXPERTS, MAX_USED, Routing, Step, WeightedSum};
use super::pass::FusionPass;
use crate::graph::{Op, TensorId, Unary};

/// Weights of the selected experts, up to the last node that only reads them.
struct Weights {
    softmax: Option<f32>,
    sum: Option<[f32; 2]>,
    scale: [f32; 2],
    result: TensorId,
}

impl FusionPass<'_> {
    /// Finds the selection of experts that begins with node `i`. It consists of the gates of all experts, the
    /// selection by gates plus bias, and the weights of the selected experts.
    pub(super) fn routed(&mut self, i: usize) -> Option<(Step, Vec<usize>)> {
        let mut members = Vec::new();
        let (gate, logits, gates) = self.gates(i, &mut members)?;
        let (ids_at, bias) = self.selection(i, gates, &mut members)?;
        let ids = self.nodes[ids_at];
        let lookup = self.readers_of(ids)?.into_iter().find(|&at| {
            let t = self.tensor(at);
            let owner = t.src[0].and_then(|table| self.graph.tensor(table).view);
            t.op == Op::GetRows && t.src[1] == Some(ids) && owner == Some((gates, 0))
        })?;
        members.push(lookup);
        let weights = self.weights(lookup, &mut members);
        let (t, u) = (self.graph.tensor(logits), self.graph.tensor(ids));
        let [n_experts, n_tokens, ..] = t.ne;
        let fits = n_experts <= MAX_EXPERTS && u.ne[0] <= MAX_USED.min(n_experts) && u.ne == [u.ne[0], n_tokens, 1, 1];
        let table = self.graph.tensor(self.tensor(lookup).source(0));
        let is_table = table.ne == [1, n_experts, n_tokens, 1] && table.is_contiguous();
        let is_list = t.ty == GgmlType::F32 && t.ne == [n_experts, n_tokens, 1, 1];
        // The gates have no readers but members.
        let are_used_here = gate == Gate::None || self.readers_of(gates)?.iter().all(|at| members.contains(at));
        if !fits || !is_table || !is_list || !are_used_here {
            return None;
        }
        let routing = Routing {
            logits,
            gate,
            bias,
            ids,
            softmax: weights.softmax,
            sum: weights.sum,
            scale: weights.scale,
            weights: weights.result,
        };
        let reads: Vec<TensorId> = [Some(logits), bias].into_iter().flatten().collect();
        let results = [ids, weights.result];
        self.may_compute(i, &members, &reads, &results)
            .then_some((Step::Routing(routing), members))
    }

    /// Returns the function that node `i` starts with, its operand, and its result. The operand is the result if the
    /// selection uses the logits themselves.
    fn gates(&self, i: usize, members: &mut Vec<usize>) -> Option<(Gate, TensorId, TensorId)> {
        let (id, node) = (self.nodes[i], self.tensor(i));
        let logits = node.source(0);
        let gate = match node.op {
            Op::SoftMax { scale } => Gate::Softmax(scale),
            Op::Unary(Unary::Sigmoid) => Gate::Sigmoid,
            Op::Unary(Unary::Softplus) => {
                let root = self.only_reader(id)?;
                members.extend([i, root]);
                let is_root = self.tensor(root).op == Op::Unary(Unary::Sqrt) && self.tensor(root).src[0] == Some(id);
                return is_root.then_some((Gate::SqrtSoftplus, logits, self.nodes[root]));
            }
            Op::Add | Op::TopK { .. } => return Some((Gate::None, logits, logits)),
            _ => return None,
        };
        members.push(i);
        Some((gate, logits, id))
    }

    /// Returns the position of the selection by gates, and the bias added before it. `i` is the first node of the step.
    fn selection(&self, i: usize, gates: TensorId, members: &mut Vec<usize>) -> Option<(usize, Option<TensorId>)> {
        let selects = |at: usize, by: TensorId| {
            let t = self.tensor(at);
            matches!(t.op, Op::TopK { .. }) && t.src[0] == Some(by) && !self.taken[at]
        };
        // Without a gate, the step begins with the selection or the bias.
        let candidates = if members.is_empty() {
            vec![i]
        } else {
            self.readers_of(gates)?
        };
        if let Some(&at) = candidates.iter().find(|&&at| selects(at, gates)) {
            members.push(at);
            return Some((at, None));
        }
        let at_sum = *candidates.iter().find(|&&at| {
            let t = self.tensor(at);
            t.op == Op::Add && t.src[0] == Some(gates) && !self.taken[at]
        })?;
        let (sum, bias) = (self.tensor(at_sum), self.tensor(at_sum).source(1));
        let b = self.graph.tensor(bias);
        let is_row = b.ty == GgmlType::F32 && b.ne == [sum.ne[0], 1, 1, 1];
        let at = self.only_reader(self.nodes[at_sum])?;
        if !is_row || !selects(at, self.nodes[at_sum]) {
            return None;
        }
        members.extend([at_sum, at]);
        Some((at, Some(bias)))
    }

    /// Returns the weights computed from those that node `lookup` reads, with as many nodes as possible.
    fn weights(&self, lookup: usize, members: &mut Vec<usize>) -> Weights {
        let mut found = Weights {
            softmax: None,
            sum: None,
            scale: [1.0, 0.0],
            result: self.nodes[lookup],
        };
        if let Some(at) = self.only_reader(found.result)
            && let Op::SoftMax { scale } = self.tensor(at).op
        {
            members.push(at);
            (found.softmax, found.result) = (Some(scale), self.nodes[at]);
        }
        if let Some((sum, positions)) = self.normalized(found.result) {
            found.result = self.nodes[positions[2]];
            found.sum = Some(sum);
            members.extend(positions);
        }
        if let Some(at) = self.only_reader(found.result)
            && let Op::Scale { scale, bias } = self.tensor(at).op
        {
            members.push(at);
            (found.scale, found.result) = ([scale, bias], self.nodes[at]);
        }
        found
    }

    /// Returns the bounds of the sum that divides weights, and the positions of sum, clamp, and division.
    fn normalized(&self, weights: TensorId) -> Option<([f32; 2], [usize; 3])> {
        let readers = self.readers_of(weights)?;
        let is_free = |at: &&usize| !self.taken[**at];
        let &at_sum = readers
            .iter()
            .filter(is_free)
            .find(|&&at| self.tensor(at).op == Op::SumRows)?;
        let &at_ratio = readers
            .iter()
            .filter(is_free)
            .find(|&&at| self.tensor(at).op == Op::Div)?;
        let at_clamp = self.only_reader(self.nodes[at_sum])?;
        let Op::Clamp { min, max } = self.tensor(at_clamp).op else {
            return None;
        };
        let ratio = self.tensor(at_ratio);
        let rows = ratio.source(0);
        // Numerator and summands are rows of all weights of a token.
        let is_ratio = readers.len() == 2
            && ratio.src[1] == Some(self.nodes[at_clamp])
            && self.only_reader(self.nodes[at_clamp]) == Some(at_ratio)
            && self.tensor(at_sum).src[0] == Some(rows)
            && ratio.ne[2..] == [1, 1];
        is_ratio.then_some(([min, max], [at_sum, at_clamp, at_ratio]))
    }

    /// Finds the weighted sum that begins with the product at `i`.
    pub(super) fn weighted_sum(&mut self, i: usize) -> Option<(Step, Vec<usize>)> {
        let (product, t) = (self.nodes[i], self.tensor(i));
        let [x, weights] = [t.source(0), t.source(1)];
        let [n, n_used, n_tokens, outer] = t.ne;
        let (u, w) = (self.graph.tensor(x), self.graph.tensor(weights));
        let suits = u.ne == t.ne && w.ne == [1, n_used, n_tokens, 1] && outer == 1 && n_used > 1 && n > 1;
        if !suits || [u, w].iter().any(|operand| operand.ty != GgmlType::F32) {
            return None;
        }
        // The first sum reads two parts, and each other sum the sum before it and one part.
        let part = |id: Option<TensorId>, place: usize| {
            let part = self.graph.tensor(id?);
            let is_part = part.view == Some((product, place * t.nb[1]))
                && part.ne == [n, n_tokens, 1, 1]
                && (part.nb[0], part.nb[1]) == (t.nb[0], t.nb[2]);
            is_part.then_some(())
        };
        let readers = self.readers_of(product)?;
        let mut members = vec![i];
        let mut result = product;
        for place in 1..n_used {
            let at = match place {
                1 => *readers.iter().min()?,
                _ => self.only_reader(result)?,
            };
            let sum = self.tensor(at);
            if sum.op != Op::Add || self.taken[at] || sum.ne != [n, n_tokens, 1, 1] {
                return None;
            }
            match place {
                1 => part(sum.src[0], 0)?,
                _ if sum.src[0] == Some(result) => {}
                _ => return None,
            }
            part(sum.src[1], place)?;
            members.push(at);
            result = self.nodes[at];
        }
        let only_parts_are_read = readers.len() == n_used && readers.iter().all(|at| members.contains(at));
        if !only_parts_are_read || !self.may_compute(i, &members, &[x, weights], &[result]) {
            return None;
        }
        Some((Step::WeightedSum(WeightedSum { product, result }), members))
    }

    /// Returns true if a step at node `i` may compute `results`. Relocates them if their memory is in use at that
    /// point.
    fn may_compute(&mut self, i: usize, members: &[usize], reads: &[TensorId], results: &[TensorId]) -> bool {
        let is_result = |at: usize| results.contains(&self.nodes[at]);
        let comes = |stores: bool| {
            members
                .iter()
                .all(|&at| !self.taken[at] && self.can_move_to(i, at, members, stores && is_result(at)))
        };
        let are_apart = results.iter().enumerate().all(|(n, &to)| {
            let others = reads.iter().chain(&results[..n]);
            others.copied().all(|other| self.is_disjoint(to, other))
        });
        if are_apart && comes(true) {
            return true;
        }
        comes(false) && results.iter().all(|&id| self.may_be_moved(id)) && self.try_move(i, results)
    }
}
