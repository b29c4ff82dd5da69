//! The order of nodes that do not depend on each other.

use super::{Graph, Op, TensorId};

/// Nodes after one among which others of its kind are looked for.
const NEAR: usize = 24;

impl Graph {
    /// Moves nodes of a kind side by side that are close and do not depend on each other: products of the same activations, and what is done to each
    /// of them. A backend has to wait between nodes that need each other, and the fewer of these waits the better.
    ///
    /// Nodes that backends compute as one with those that follow stay where they are, and nothing moves past attention or a recurrence, so that
    /// results need not be kept for longer.
    pub fn gather(&mut self) {
        let nodes = std::mem::take(&mut self.nodes);
        let (mut order, mut placed) = std::mem::take(&mut self.ordering);
        order.clear();
        placed.clear();
        placed.resize(self.len(), false);
        let mut to = Order {
            graph: self,
            order,
            placed,
        };
        for (i, &node) in nodes.iter().enumerate() {
            let after = &nodes[i + 1..];
            if to.append(node) && to.graph.is_alone(node, after) {
                to.gather_for(node, after);
            }
        }
        let Order { order, placed, .. } = to;
        self.nodes = order;
        self.ordering = (nodes, placed);
        self.touch();
    }

    /// True if the node is of a kind that is gathered, and those `after` it are not computed together with it: a norm of a sum, a gated product.
    fn is_alone(&self, node: TensorId, after: &[TensorId]) -> bool {
        let mut next = after.iter().map(|&id| self.tensor(id)).filter(|t| t.op.computes());
        match self.tensor(node).op {
            Op::MulMat => !next
                .take(2)
                .any(|t| matches!(t.op, Op::Glu(_)) && t.sources().any(|s| s == node)),
            Op::Add => !next
                .next()
                .is_some_and(|t| matches!(t.op, Op::RmsNorm { .. }) && t.src[0] == Some(node)),
            Op::RmsNorm { .. } | Op::Rope(_) => true,
            _ => false,
        }
    }

    /// True if `other` does to something else what `node` does, or is another product of its activations.
    fn is_alike(&self, node: TensorId, other: TensorId) -> bool {
        let (a, b) = (self.tensor(node), self.tensor(other));
        let reads_cache = |id: TensorId| {
            let owner = self.tensor(self.memory_owner(id));
            owner.op == Op::None && !owner.flags.weight && !owner.flags.input
        };
        match a.op {
            Op::MulMat => b.op == Op::MulMat && b.src[1] == a.src[1] && self.tensor(b.source(0)).flags.weight,
            op => b.op == op && !b.sources().any(reads_cache),
        }
    }
}

/// Nodes in a new order.
struct Order<'a> {
    graph: &'a Graph,
    order: Vec<TensorId>,
    /// By tensor: it is among them.
    placed: Vec<bool>,
}

impl Order<'_> {
    /// Appends a node, unless it is there.
    fn append(&mut self, node: TensorId) -> bool {
        let is_new = !std::mem::replace(&mut self.placed[node.index()], true);
        if is_new {
            self.order.push(node);
        }
        is_new
    }

    /// Appends those close `after` a node that are like it and ready.
    fn gather_for(&mut self, node: TensorId, after: &[TensorId]) {
        for (i, &other) in after.iter().take(NEAR).enumerate() {
            let op = self.graph.tensor(other).op;
            if matches!(op, Op::Attention(_)) || op.state_operand().is_some() {
                return;
            }
            let is_alike = self.graph.is_alike(node, other) && self.graph.is_alone(other, &after[i + 1..]);
            if is_alike && self.graph.tensor(other).sources().all(|source| self.is_ready(source)) {
                // Views of what is there may not be.
                for source in self.graph.tensor(other).sources() {
                    if self.graph.tensor(source).op.is_view() {
                        self.append(source);
                    }
                }
                self.append(other);
            }
        }
    }

    /// True if the tensor is there, or is a view of one that is.
    fn is_ready(&self, id: TensorId) -> bool {
        let is_there = |id: TensorId| self.placed[id.index()] || self.graph.tensor(id).op == Op::None;
        let tensor = self.graph.tensor(id);
        is_there(id)
            || (tensor.op.is_view()
                && tensor
                    .sources()
                    .chain(tensor.view.map(|(owner, _)| owner))
                    .all(is_there))
    }
}

#[cfg(test)]
mod tests {
    use kernels::GgmlType;

    use super::*;
    use crate::graph::Flags;

    const N: [usize; 4] = [32, 4, 1, 1];

    fn weight(g: &mut Graph) -> TensorId {
        let flags = Flags {
            weight: true,
            ..Flags::default()
        };
        let id = g.input(GgmlType::F32, [32, 32, 1, 1], "w");
        g.tensor_mut(id).flags = flags;
        id
    }

    fn product(g: &mut Graph, x: TensorId) -> TensorId {
        let w = weight(g);
        g.mul_mat(w, x).unwrap()
    }

    fn norm(g: &mut Graph, x: TensorId) -> TensorId {
        g.rms_norm(x, None, 1e-5).unwrap()
    }

    fn gathered(mut g: Graph, result: TensorId) -> Vec<TensorId> {
        g.expand(result);
        let before = g.nodes().to_vec();
        g.gather();
        let mut sorted = [before, g.nodes().to_vec()];
        let after = sorted[1].clone();
        sorted.iter_mut().for_each(|nodes| nodes.sort_by_key(|id| id.index()));
        assert_eq!(sorted[0], sorted[1]);
        // Sources first.
        for (i, &node) in after.iter().enumerate() {
            let late = |s: TensorId| after[i..].contains(&s);
            assert!(!g.tensor(node).sources().any(late));
        }
        after
    }

    #[test]
    fn products_of_one_input_and_what_is_done_to_them_lie_side_by_side() {
        let mut g = Graph::new();
        let x = g.input(GgmlType::F32, N, "x");
        let x = norm(&mut g, x);
        let q = product(&mut g, x);
        let q_rows = g.reshape(q, [16, 8, 1, 1]).unwrap();
        let q_norm = norm(&mut g, q_rows);
        let k = product(&mut g, x);
        let k_rows = g.reshape(k, [16, 8, 1, 1]).unwrap();
        let k_norm = norm(&mut g, k_rows);
        let result = g.mul(q_norm, k_norm).unwrap();
        let order = gathered(g, result);
        assert_eq!(order, [x, q, k, q_rows, q_norm, k_rows, k_norm, result]);
    }

    #[test]
    fn what_is_computed_together_stays_together() {
        let mut g = Graph::new();
        let x = g.input(GgmlType::F32, N, "x");
        let x = norm(&mut g, x);
        let router = product(&mut g, x);
        let scaled = g.scale(router, 2.0, 0.0).unwrap();
        let (gate, up) = (product(&mut g, x), product(&mut g, x));
        let glu = g.glu(crate::graph::Unary::Silu, gate, up).unwrap();
        let sum = g.add(scaled, glu).unwrap();
        let normed = norm(&mut g, sum);
        let result = g.add(normed, sum).unwrap();
        let order = gathered(g, result);
        assert_eq!(order, [x, router, scaled, gate, up, glu, sum, normed, result]);
    }
}
