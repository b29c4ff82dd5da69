//! Which nodes are computed together with those that follow them, so that a row is still in the cache when it is read, and
//! threads do not wait for each other in between; and which norms every thread computes for itself.

use kernels::{BF16_STEP, GgmlType, Precision};

use super::activations::{Held, Quantized, Room};
use super::ops;
use super::view::{Place, locate, may_overlap};
use crate::backend::{GraphView, MemoryMap};
use crate::graph::{Op, Tensor, TensorId, Unary};

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
    /// A product with few columns, and its sum with another operand of the sum. The product is not stored.
    ProductAdd {
        /// Which operand of the sum the other is.
        other: usize,
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
            Fusion::AddRmsNorm { .. } | Fusion::ProductAdd { .. } => 2,
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
            Op::MulMat | Op::MulMatId => {
                let glu = after.next().and_then(|last| self.products_glu([first, second, last]));
                glu.or_else(|| self.product_add(first, second))
            }
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

    /// Each thread computes rows of the product in its own memory and adds what the other operand has there, whose place the sum may take. While sums are stored,
    /// other threads read weights, and what they make their activations of.
    fn product_add(&self, first: TensorId, second: TensorId) -> Option<Fusion> {
        let graph = self.view.graph;
        let (product, sum) = (graph.tensor(first), graph.tensor(second));
        let activations = Quantized::for_product(graph, product, self.precision)?;
        let is_of_few = activations.room == Room::Own && ops::is_of_few(graph, product);
        if sum.op != Op::Add || !is_of_few || self.view.uses.n_readers(first) != 1 {
            return None;
        }
        let other = usize::from(sum.src[0] == Some(first));
        let b = graph.tensor(sum.source(other));
        let repeats_rows = b.ne[0] == sum.ne[0] && (b.ne[1] == 1 || b.ne[1] == sum.ne[1]);
        let is_list = b.ty == GgmlType::F32 && b.is_contiguous();
        let is_list = is_list && self.find(sum.source(other))?.is_aligned_to(size_of::<f32>());
        let is_row_by_row = product.ne == sum.ne && repeats_rows && is_list;
        let at = self.find(second)?;
        let are_apart = self.is_apart_from_reads(&at, product);
        (sum.src[1 - other] == Some(first) && is_row_by_row && are_apart).then_some(Fusion::ProductAdd { other })
    }

    /// True if nothing lies `at` a place that threads read while they compute a product: weights, which experts are wanted, and its activations, or what these are
    /// made of, unless they are quantized before.
    fn is_apart_from_reads(&self, at: &Place, product: &Tensor) -> bool {
        let is_apart = |id: TensorId| self.find(id).is_some_and(|place| !place.overlaps(at));
        let x = product.source(1);
        let activations = Quantized::for_product(self.view.graph, product, self.precision);
        let is_x_apart = match activations.map(|activations| activations.room) {
            Some(Room::Shared) if self.held.stored(x).is_none() => true,
            _ => match self.held.norm(x) {
                Some((norm, _)) => self.view.graph.tensor(norm).sources().all(is_apart),
                None => is_apart(x),
            },
        };
        is_x_apart && is_apart(product.source(0)) && product.src[2].is_none_or(is_apart)
    }

    /// Each thread computes the same rows of both products in its own memory. So the result may lie anywhere but where threads read meanwhile.
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
        let share_activations = Quantized::for_product(graph, b, self.precision) == Some(activations);
        let is_few_or_many = activations.room == Room::Shared || a.op == Op::MulMatId || ops::is_of_few(graph, a);
        let at = self.find(last)?;
        // Only then is the second one a product.
        let are_apart = is_of_both && are_alike && [a, b].iter().all(|product| self.is_apart_from_reads(&at, product));
        (is_of_both && are_alike && share_activations && is_few_or_many && are_apart)
            .then_some(Fusion::ProductsGlu { f, gate_is_first })
    }

    /// What products read of norm `id` if every thread is to compute it for itself when it quantizes the activations of one: the norm or a view of all of it. So it is if
    /// nothing but such products, which come soon `after` it, read it, and what it is made of stays as it is up to the last of them.
    pub(super) fn own_norm(&self, id: TensorId, after: impl Iterator<Item = TensorId> + Clone) -> Option<TensorId> {
        let graph = self.view.graph;
        let norm = graph.tensor(id);
        if !matches!(norm.op, Op::RmsNorm { .. }) {
            return None;
        }
        let after = after.take(NEAR);
        let product = |id: TensorId| Some(graph.tensor(id)).filter(|node| matches!(node.op, Op::MulMat | Op::MulMatId));
        let mut products = after.clone().filter_map(product);
        let read = products.find_map(|product| self.whole_of(id, product.source(1)))?;
        let wants_own = |product: &Tensor| {
            let activations = Quantized::for_product(graph, product, self.precision);
            activations.is_some_and(|activations| activations.room == Room::Own)
        };
        let uses = self.view.uses;
        let is_read_once = read == id || uses.n_readers(id) == 1;
        if graph.tensor(read).ne[0] != norm.ne[0] || !is_read_once {
            return None;
        }
        let mut n_readers = 0;
        for next in after {
            let is_reader = product(next).is_some_and(|product| product.source(1) == read);
            if (is_reader && !wants_own(graph.tensor(next))) || !norm.sources().all(|x| self.leaves_alone(next, x)) {
                return None;
            }
            n_readers += usize::from(is_reader);
            if n_readers == uses.n_readers(read) {
                return Some(read);
            }
        }
        None
    }

    /// True if a node writes nothing where tensor `x` lies.
    fn leaves_alone(&self, node: TensorId, x: TensorId) -> bool {
        let tensor = self.view.graph.tensor(node);
        let states = tensor.op.state_operand().map(|i| tensor.source(i));
        let mut written = [Some(node), states].into_iter().flatten();
        let is_apart = |at: &Place| written.all(|id| self.find(id).is_some_and(|place| !place.overlaps(at)));
        self.find(x).as_ref().is_some_and(is_apart)
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
