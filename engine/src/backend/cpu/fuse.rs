//! Which nodes are computed together with those that follow them, so that a row is still in the cache when it is read, and
//! threads do not wait for each other in between.

use kernels::Precision;

use super::activations::{Quantized, Room};
use super::view::{locate, may_overlap};
use crate::backend::{GraphView, MemoryMap};
use crate::graph::{Op, TensorId, Unary};

/// How a node is computed together with the next ones.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Fusion {
    /// A sum and its norm.
    AddRmsNorm {
        /// Of the norm.
        eps: f32,
        /// The sum has other readers.
        stores_sum: bool,
    },
    /// Two products of the same activations, and `f` of one of them times the other. Neither product is stored.
    ProductsGlu {
        f: Unary,
        /// The first product is what `f` is taken of.
        gate_is_first: bool,
    },
}

/// Most nodes that are computed together.
pub(super) const MAX_FUSED: usize = 3;

impl Fusion {
    /// Nodes that are computed together.
    pub(super) fn n_nodes(&self) -> usize {
        match self {
            Fusion::AddRmsNorm { .. } => 2,
            Fusion::ProductsGlu { .. } => 3,
        }
    }
}

/// The fusion of `first` and some of those that come `after` it, if one is possible. All were checked.
pub(super) fn fusion(
    view: &GraphView<'_>,
    memory: &MemoryMap,
    precision: Precision,
    first: TensorId,
    mut after: impl Iterator<Item = TensorId>,
) -> Option<Fusion> {
    let second = after.next()?;
    match view.graph.tensor(first).op {
        Op::Add => add_rms_norm(view, memory, first, second),
        Op::MulMat => products_glu(view, precision, [first, second, after.next()?]),
        _ => None,
    }
}

/// Each thread computes whole rows of both results, while others are at other rows. So the second result must not lie where other
/// rows of what the first one reads or writes do.
fn add_rms_norm(view: &GraphView<'_>, memory: &MemoryMap, first: TensorId, second: TensorId) -> Option<Fusion> {
    let (sum, norm) = (view.graph.tensor(first), view.graph.tensor(second));
    let Op::RmsNorm { eps } = norm.op else {
        return None;
    };
    if norm.src[0] != Some(first) || norm.src[1] == Some(first) {
        return None;
    }
    let find = |id: TensorId| locate(view.graph, memory, id).ok();
    let (at_sum, at_norm) = (find(first)?, find(second)?);
    let (at_a, at_b) = (find(sum.source(0))?, find(sum.source(1))?);
    let a = view.graph.tensor(sum.source(0));
    if at_norm.overlaps(&at_b) || (at_norm.overlaps(&at_a) && !may_overlap(norm, a, 0, &at_a, &at_norm)) {
        return None;
    }
    if let Some(weight) = norm.src[1]
        && find(weight)?.overlaps(&at_sum)
    {
        return None;
    }
    let stores_sum = view.uses.n_readers(first) > 1;
    (!stores_sum || !at_norm.overlaps(&at_sum)).then_some(Fusion::AddRmsNorm { eps, stores_sum })
}

/// Each thread computes the same rows of both products in its own memory. They read weights and the activations that threads share, so it does not matter
/// where the result lies.
fn products_glu(view: &GraphView<'_>, precision: Precision, [first, second, last]: [TensorId; 3]) -> Option<Fusion> {
    let graph = view.graph;
    let (a, b, glu) = (graph.tensor(first), graph.tensor(second), graph.tensor(last));
    let (Op::MulMat, Op::Glu(f)) = (b.op, glu.op) else {
        return None;
    };
    let gate_is_first = glu.src[0] == Some(first);
    let operands = if gate_is_first {
        [first, second]
    } else {
        [second, first]
    };
    let is_of_both =
        glu.src[..2] == operands.map(Some) && [first, second].iter().all(|&id| view.uses.n_readers(id) == 1);
    let are_alike = a.src[1] == b.src[1] && a.ne == b.ne && a.ne[2..] == [1, 1];
    let activations = Quantized::for_product(graph, a, precision)?;
    let share_activations =
        activations.room == Room::Shared && Quantized::for_product(graph, b, precision) == Some(activations);
    (is_of_both && are_alike && share_activations).then_some(Fusion::ProductsGlu { f, gate_is_first })
}

#[cfg(test)]
mod tests;
