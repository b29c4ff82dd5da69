//! Fusion of matmuls with the same columns, of matmuls with the sums after them, and of gated units.

use kernels::GgmlType;

use super::super::ops::{MAX_ADDS, Part, Products, Step};
use super::pass::FusionPass;
use crate::graph::{Op, TensorId};

/// Maximum number of matmuls per step.
const MAX_PRODUCTS: usize = 6;

/// A part and the positions of its nodes.
struct Found {
    part: Part,
    members: Vec<usize>,
}

impl FusionPass<'_> {
    /// Returns the step that begins with the matmul at `i`.
    pub(super) fn products(&mut self, i: usize) -> Option<(Step, Vec<usize>)> {
        self.gated(i)
            .or_else(|| self.of_same_columns(i))
            .or_else(|| self.with_sums(i))
    }

    /// Finds a gated unit: two matmuls with the same columns, combined as `f(gate) * up`.
    fn gated(&self, i: usize) -> Option<(Step, Vec<usize>)> {
        let first = self.nodes[i];
        let at_glu = self.only_reader(first)?;
        let (glu, a) = (self.tensor(at_glu), self.tensor(i));
        let Op::Glu(f) = glu.op else {
            return None;
        };
        let [gate, up] = [glu.source(0), glu.source(1)];
        let second = if gate == first { up } else { gate };
        let at_second = *self.positions.get(&second)?;
        let b = self.graph.tensor(second);
        let are_alike = a.op == b.op && a.src[1..] == b.src[1..] && a.ne == b.ne && glu.ne == a.ne;
        let [v, w] = [a.source(0), b.source(0)];
        let (tv, tw) = (self.graph.tensor(v), self.graph.tensor(w));
        // One kernel reads both weights, so type, shape, and strides must match.
        let are_read_alike = (tv.ty, tv.ne, tv.nb) == (tw.ty, tw.ne, tw.nb);
        let [at_v, at_w] = [self.address(v)?, self.address(w)?];
        let is_aligned_alike = at_v % 16 == at_w % 16;
        let members = vec![i, at_second, at_glu];
        let is_valid = are_alike
            && are_read_alike
            && is_aligned_alike
            && at_second > i
            && self.only_reader(second) == Some(at_glu)
            && !self.taken[at_second]
            && self.can_move_to(i, at_second, &members, false)
            && self.can_move_to(i, at_glu, &members, true)
            && a.src[1..]
                .iter()
                .flatten()
                .chain([&v, &w])
                .all(|&read| self.is_disjoint(self.nodes[at_glu], read));
        if !is_valid {
            return None;
        }
        let part = |product: TensorId| Part {
            product,
            adds: [None; MAX_ADDS],
            result: self.nodes[at_glu],
        };
        let products = Products {
            parts: vec![part(gate), part(up)],
            glu: Some(f),
            rounds: self.rounded_rows(self.nodes[at_glu], at_glu).is_some(),
        };
        Some((Step::Products(products), members))
    }

    /// Finds all matmuls with the same columns that can run at position `i`, and relocates their results.
    fn of_same_columns(&mut self, i: usize) -> Option<(Step, Vec<usize>)> {
        let first = self.tensor(i);
        if first.op != Op::MulMat {
            return None;
        }
        let mut found = Vec::new();
        for at in self.near(i).collect::<Vec<_>>() {
            let t = self.tensor(at);
            if t.op != Op::MulMat
                || t.src[1] != first.src[1]
                || t.ne[1..] != first.ne[1..]
                || found.len() == MAX_PRODUCTS
            {
                continue;
            }
            let part = self.part(i, at, &[]);
            if self.may_be_moved(part.part.result) && self.can_move_to(i, at, &part.members, false) {
                found.push(part);
            } else if at == i {
                return None;
            }
        }
        let results: Vec<TensorId> = found.iter().map(|f| f.part.result).collect();
        if found.len() < 2 || !self.try_move(i, &results) {
            return None;
        }
        Some(step_of(found))
    }

    /// Finds the matmul at `i` with the sums after it.
    fn with_sums(&self, i: usize) -> Option<(Step, Vec<usize>)> {
        let found = self.part(i, i, &[]);
        let Part { adds, result, .. } = found.part;
        let product = self.tensor(i);
        let last = *found.members.last()?;
        let adds: Vec<TensorId> = adds.into_iter().flatten().collect();
        let is_valid = self.can_move_to(i, last, &found.members, true)
            && product.sources().all(|read| self.is_disjoint(result, read))
            && adds.iter().all(|&add| self.is_disjoint_or_same(result, add));
        if adds.is_empty() || !is_valid {
            return None;
        }
        Some(step_of(vec![found]))
    }

    /// Returns the matmul at `at` with as many following sums as can run at the position of node `first`.
    fn part(&self, first: usize, at: usize, others: &[usize]) -> Found {
        let product = self.nodes[at];
        let mut part = Part {
            product,
            adds: [None; MAX_ADDS],
            result: product,
        };
        let mut members = vec![at];
        members.extend_from_slice(others);
        for n in 0..MAX_ADDS {
            let Some((at_sum, added)) = self.sum_of(part.result, first) else {
                break;
            };
            if !self.can_move_to(first, at_sum, &members, false) {
                break;
            }
            members.push(at_sum);
            (part.adds[n], part.result) = (Some(added), self.nodes[at_sum]);
        }
        Found { part, members }
    }

    /// Returns the sum that is the only reader of a result, and its other operand, which must be available at
    /// the position of node `first`.
    fn sum_of(&self, id: TensorId, first: usize) -> Option<(usize, TensorId)> {
        let at = self.only_reader(id)?;
        let sum = self.tensor(at);
        if sum.op != Op::Add || sum.ne != self.graph.tensor(id).ne {
            return None;
        }
        let (a, b) = (sum.source(0), sum.source(1));
        let added = if a == id { b } else { a };
        let reads_directly = (a == id) != (b == id);
        let t = self.graph.tensor(added);
        let repeats = (0..4).all(|d| t.ne[d] == sum.ne[d] || t.ne[d] == 1);
        let owner = t.view.map_or(added, |(owner, _)| owner);
        let is_there = self
            .positions
            .get(&owner)
            .is_none_or(|&at| at < first || self.taken[at]);
        if reads_directly && repeats && t.ty == GgmlType::F32 && is_there {
            Some((at, added))
        } else {
            None
        }
    }
}

fn step_of(found: Vec<Found>) -> (Step, Vec<usize>) {
    let members = found.iter().flat_map(|f| f.members.iter().copied()).collect();
    let parts = found.into_iter().map(|f| f.part).collect();
    let products = Products {
        parts,
        glu: None,
        rounds: false,
    };
    (Step::Products(products), members)
}
