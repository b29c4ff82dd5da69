//! Which nodes are computed together with those that follow them, so that a row is still in the cache when it is read, and
//! threads do not wait for each other in between.

use kernels::{BF16_STEP, Precision};

use super::activations::{Held, Quantized, Room};
use super::view::{Place, locate, may_overlap};
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

/// Most nodes that are looked at for the readers of a result.
const NEAR: usize = 16;

/// What is known when a node is planned.
#[derive(Clone, Copy)]
pub(super) struct Outlook<'a> {
    pub(super) view: &'a GraphView<'a>,
    pub(super) memory: &'a MemoryMap,
    pub(super) precision: Precision,
    pub(super) held: &'a Held,
}

impl Outlook<'_> {
    /// The fusion of `first` and some of those that come `after` it, if one is possible. All were checked.
    pub(super) fn fusion(&self, first: TensorId, mut after: impl Iterator<Item = TensorId>) -> Option<Fusion> {
        let second = after.next()?;
        match self.view.graph.tensor(first).op {
            Op::Add => self.add_rms_norm(first, second),
            Op::MulMat | Op::MulMatId => self.products_glu([first, second, after.next()?]),
            _ => None,
        }
    }

    /// Each thread computes whole rows of both results, while others are at other rows. So the second result must not lie where other
    /// rows of what the first one reads or writes do.
    fn add_rms_norm(&self, first: TensorId, second: TensorId) -> Option<Fusion> {
        let graph = self.view.graph;
        let (sum, norm) = (graph.tensor(first), graph.tensor(second));
        let Op::RmsNorm { eps } = norm.op else {
            return None;
        };
        if norm.src[0] != Some(first) || norm.src[1] == Some(first) {
            return None;
        }
        let (at_sum, at_norm) = (self.find(first)?, self.find(second)?);
        let (at_a, at_b) = (self.find(sum.source(0))?, self.find(sum.source(1))?);
        let a = graph.tensor(sum.source(0));
        if at_norm.overlaps(&at_b) || (at_norm.overlaps(&at_a) && !may_overlap(norm, a, 0, &at_a, &at_norm)) {
            return None;
        }
        if let Some(weight) = norm.src[1]
            && self.find(weight)?.overlaps(&at_sum)
        {
            return None;
        }
        let stores_sum = self.view.uses.n_readers(first) > 1;
        (!stores_sum || !at_norm.overlaps(&at_sum)).then_some(Fusion::AddRmsNorm { eps, stores_sum })
    }

    /// Each thread computes the same rows of both products in its own memory. They read weights and the activations that threads share, so it does not matter
    /// where the result lies, unless these were stored as the operand or tokens choose experts, whose numbers are read meanwhile.
    fn products_glu(&self, [first, second, last]: [TensorId; 3]) -> Option<Fusion> {
        let graph = self.view.graph;
        let (a, b, glu) = (graph.tensor(first), graph.tensor(second), graph.tensor(last));
        let Op::Glu(f) = glu.op else {
            return None;
        };
        let gate_is_first = glu.src[0] == Some(first);
        let operands = if gate_is_first {
            [first, second]
        } else {
            [second, first]
        };
        let are_read_once = [first, second].iter().all(|&id| self.view.uses.n_readers(id) == 1);
        let is_of_both = glu.src[..2] == operands.map(Some) && are_read_once;
        // The activations, and which experts.
        let are_alike = a.op == b.op && a.src[1..] == b.src[1..] && a.ne == b.ne;
        let are_alike = are_alike && (a.op == Op::MulMatId || a.ne[2..] == [1, 1]);
        let activations = Quantized::for_product(graph, a, self.precision)?;
        let share_activations =
            activations.room == Room::Shared && Quantized::for_product(graph, b, self.precision) == Some(activations);
        let at = self.find(last)?;
        let is_apart = |id: TensorId| self.find(id).is_some_and(|place| !place.overlaps(&at));
        let x = a.source(1);
        // What is read while results are written: rows that are stored as the operand, and which experts are wanted.
        let are_apart = (self.held.stored(x).is_none() || is_apart(x)) && a.src[2].is_none_or(is_apart);
        (is_of_both && are_alike && share_activations && are_apart).then_some(Fusion::ProductsGlu { f, gate_is_first })
    }

    /// The form in which the result of `last` is stored if not as floats: that of the products that come soon `after` it, if nothing else reads it. `last` is
    /// `first`, or computed together with it. Returned with what the products read: the result or a view of all of it.
    pub(super) fn stored_form(
        &self,
        first: TensorId,
        fusion: Option<Fusion>,
        last: TensorId,
        after: impl Iterator<Item = TensorId> + Clone,
    ) -> Option<(TensorId, Quantized)> {
        let graph = self.view.graph;
        // Elements that are stored at a time.
        let part = match (fusion, graph.tensor(last).op) {
            (None, Op::RmsNorm { .. }) | (Some(Fusion::AddRmsNorm { .. }), _) => None,
            (Some(Fusion::ProductsGlu { .. }), _) => Some(BF16_STEP),
            (None, Op::Attention(_)) => Some(graph.tensor(last).ne[0]),
            _ => return None,
        };
        let products = after
            .take(NEAR)
            .filter(|&id| matches!(graph.tensor(id).op, Op::MulMat | Op::MulMatId));
        let read = products
            .clone()
            .find_map(|id| self.whole_of(last, graph.tensor(id).source(1)))?;
        let result = graph.tensor(read);
        let products = products.filter(|&id| graph.tensor(id).source(1) == read);
        let mut forms = products.map(|id| Quantized::for_product(graph, graph.tensor(id), self.precision));
        let form = forms.next()??;
        let n_alike = 1 + forms.filter(|&other| other == Some(form)).count();
        let at = self.find(last)?;
        // A row in another form lies where other rows of floats would.
        let is_apart = |id: TensorId| self.find(id).is_some_and(|place| !place.overlaps(&at));
        let are_apart = match fusion {
            Some(Fusion::ProductsGlu { .. }) => is_apart(graph.tensor(first).source(1)),
            _ => [first, last]
                .iter()
                .all(|&id| (id == last || is_apart(id)) && graph.tensor(id).sources().all(is_apart)),
        };
        let can_be_stored = form.can_be_stored(result, &at) && part.is_none_or(|n| form.can_be_stored_in_parts(n));
        let uses = self.view.uses;
        let is_read_so = n_alike == uses.n_readers(read) && (read == last || uses.n_readers(last) == 1);
        (form.room == Room::Shared && is_read_so && are_apart && can_be_stored).then_some((read, form))
    }

    /// `read`, if it is `result` or all of it in another shape.
    fn whole_of(&self, result: TensorId, read: TensorId) -> Option<TensorId> {
        let graph = self.view.graph;
        let (of, view) = (graph.tensor(result), graph.tensor(read));
        let is_reshaped = view.view == Some((result, 0)) && view.is_contiguous() && view.nelements() == of.nelements();
        (read == result || is_reshaped).then_some(read)
    }

    fn find(&self, id: TensorId) -> Option<Place> {
        locate(self.view.graph, self.memory, id).ok()
    }
}

#[cfg(test)]
mod tests;
