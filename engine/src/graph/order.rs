//! Reordering of independent nodes.

use super::{Graph, Op, TensorId};

/// Number of following nodes searched for a similar node.
const NEAR: usize = 24;

impl Graph {
    /// Moves similar, independent nodes next to each other: matmuls of the same activations, and the ops
    /// applied to their results. A backend synchronizes its threads between dependent nodes, so this reduces
    /// the number of barriers.
    ///
    /// Nodes that backends fuse with their successors are not moved. No node moves across attention or a
    /// recurrence, so that results do not live longer.
    pub fn gather(&mut self) {
        let nodes = std::mem::take(&mut self.nodes);
        let (mut order, mut placed) = std::mem::take(&mut self.ordering);
        order.clear();
        placed.clear();
        placed.resize(self.len(), false);
        let mut to = NodeOrder {
            graph: self,
            order,
            placed,
        };
        for (i, &node) in nodes.iter().enumerate() {
            let after = &nodes[i + 1..];
            if to.append(node) && to.graph.is_movable(node, after) {
                to.gather_for(node, after);
            }
        }
        let NodeOrder { order, placed, .. } = to;
        self.nodes = order;
        self.ordering = (nodes, placed);
        self.touch();
    }

    /// Returns true if the node may be moved and is not fused with the nodes `after` it. A norm of a sum and a gated
    /// matmul are fused.
    fn is_movable(&self, node: TensorId, after: &[TensorId]) -> bool {
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

    /// Returns true if `other` is the same op on a different operand, or another matmul of the same
    /// activations.
    fn is_similar(&self, node: TensorId, other: TensorId) -> bool {
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

/// New node order under construction.
struct NodeOrder<'a> {
    graph: &'a Graph,
    order: Vec<TensorId>,
    /// Nodes that are already in the order, by tensor.
    placed: Vec<bool>,
}

impl NodeOrder<'_> {
    /// Appends a node; returns false if the order already contains the node.
    fn append(&mut self, node: TensorId) -> bool {
        let is_new = !std::mem::replace(&mut self.placed[node.index()], true);
        if is_new {
            self.order.push(node);
        }
        is_new
    }

    /// Appends the similar, ready nodes among those close `after` a node.
    fn gather_for(&mut self, node: TensorId, after: &[TensorId]) {
        for (i, &other) in after.iter().take(NEAR).enumerate() {
            let op = self.graph.tensor(other).op;
            if matches!(op, Op::Attention(_)) || op.state_operand().is_some() {
                return;
            }
            let is_similar = self.graph.is_similar(node, other) && self.graph.is_movable(other, &after[i + 1..]);
            if is_similar && self.graph.tensor(other).sources().all(|source| self.is_ready(source)) {
                // A source may be a view that is not in the order yet.
                for source in self.graph.tensor(other).sources() {
                    if self.graph.tensor(source).op.is_view() {
                        self.append(source);
                    }
                }
                self.append(other);
            }
        }
    }

    /// Returns true if the tensor is available or is a view of an available tensor.
    fn is_ready(&self, id: TensorId) -> bool {
        let is_available = |id: TensorId| self.placed[id.index()] || self.graph.tensor(id).op == Op::None;
        let tensor = self.graph.tensor(id);
        is_available(id)
            || (tensor.op.is_view()
                && tensor
                    .sources()
                    .chain(tensor.view.map(|(owner, _)| owner))
                    .all(is_available))
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
        // Sources must precede the nodes that read them.
        for (i, &node) in after.iter().enumerate() {
            let late = |s: TensorId| after[i..].contains(&s);
            assert!(!g.tensor(node).sources().any(late));
        }
        after
    }

    #[test]
    fn gather_groups_matmuls_of_one_input() {
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
    fn gather_keeps_fused_ops_together() {
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
