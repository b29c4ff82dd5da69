//! Memory traffic and arithmetic of matmuls and attention, to rate measured times.

use super::ops::Step;
use crate::graph::{Attention, Graph, Op, PAGE, Tensor, TensorId};

/// Minimum work of a launch; 0 if unknown.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub(super) struct Work {
    /// Bytes of operands and results.
    pub(super) bytes: u64,
    /// Floating-point operations: two per multiply-add.
    pub(super) flops: u64,
}

impl std::ops::Add for Work {
    type Output = Work;

    fn add(self, other: Work) -> Work {
        Work {
            bytes: self.bytes + other.bytes,
            flops: self.flops + other.flops,
        }
    }
}

impl Work {
    /// Returns the work of the matmuls or the attention of a step.
    pub(super) fn of(graph: &Graph, step: &Step) -> Work {
        match step {
            Step::Products(products) => {
                let columns = graph.tensor(products.parts[0].product).source(1);
                let parts = products.parts.iter().map(|part| product(graph, part.product));
                parts.fold(bytes_of(graph.tensor(columns)), |sum, part| sum + part)
            }
            Step::QuantizedAttention(attended) => Work::of_node(graph, attended.attention),
            Step::Node(id) => Work::of_node(graph, *id),
            Step::Normed(_) | Step::Heads(_) | Step::Routing(_) | Step::WeightedSum(_) => Work::default(),
        }
    }

    fn of_node(graph: &Graph, id: TensorId) -> Work {
        let node = graph.tensor(id);
        match node.op {
            Op::MulMat | Op::MulMatId => bytes_of(graph.tensor(node.source(1))) + product(graph, id),
            Op::Attention(p) => attention(graph, node, &p),
            _ => Work::default(),
        }
    }
}

/// Returns the traffic of all elements of a tensor.
fn bytes_of(t: &Tensor) -> Work {
    let n_rows: usize = t.ne[1..].iter().product();
    Work {
        bytes: (t.ty.row_bytes(t.ne[0]).unwrap_or_default() * n_rows) as u64,
        flops: 0,
    }
}

/// Returns the work of a matmul, excluding its activations. For experts, each selection counts once.
fn product(graph: &Graph, id: TensorId) -> Work {
    let node = graph.tensor(id);
    let weights = graph.tensor(node.source(0));
    let mut work = bytes_of(weights) + bytes_of(node);
    if node.op == Op::MulMatId {
        let (n_expert, n_selected) = (weights.ne[2].max(1), node.ne[1] * node.ne[2]);
        let of_expert = bytes_of(weights).bytes / n_expert as u64;
        work.bytes = of_expert * n_selected.min(n_expert) as u64 + bytes_of(node).bytes;
    }
    work.flops = 2 * (weights.ne[0] * node.nelements()) as u64;
    work
}

/// Returns the work of attention to all cells of the page tables, which contain some more cells than tokens see.
fn attention(graph: &Graph, node: &Tensor, p: &Attention) -> Work {
    let at = p.operands();
    let operand = |i: usize| graph.tensor(node.source(i));
    let (q, k, v) = (operand(at.q), operand(at.k), operand(at.v));
    let n_tables = operand(at.visible.starts).ne[0].saturating_sub(1).max(1);
    let n_cells = operand(at.visible.pages).ne[0] * PAGE;
    let cell = |t: &Tensor| (t.ty.row_bytes(t.ne[0]).unwrap_or_default() * t.ne[1]) as u64;
    let cells = Work {
        bytes: n_cells as u64 * (cell(k) + cell(v)),
        flops: 2 * (q.ne[1] * q.ne[2] * (k.ne[0] + v.ne[0]) * n_cells.div_ceil(n_tables)) as u64,
    };
    cells + bytes_of(q) + bytes_of(node)
}

#[cfg(test)]
mod tests {
    use kernels::GgmlType;

    use super::*;

    /// 64 x 512 weights of 144 bytes for 256, for 3 columns of f32.
    #[test]
    fn matmul_reads_weights_and_columns_once() {
        let mut graph = Graph::new();
        let w = graph.input(GgmlType::Q4_K, [512, 64, 1, 1], "w");
        let x = graph.input(GgmlType::F32, [512, 3, 1, 1], "x");
        let product = graph.mul_mat(w, x).unwrap();
        let expected = Work {
            bytes: 64 * 2 * 144 + 3 * 512 * 4 + 3 * 64 * 4,
            flops: 2 * 64 * 512 * 3,
        };
        assert_eq!(Work::of(&graph, &Step::Node(product)), expected);
        assert_eq!(Work::of(&graph, &Step::Node(w)), Work::default());
    }
}
