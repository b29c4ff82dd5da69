//! Fusion of adjacent nodes, and selection of the norms that every thread recomputes.
//!
//! Fused nodes read a row while it is still in the cache, and need no barrier in between.

use kernels::{GgmlType, Precision};

use super::activations::{Quantization, QuantizedCache, Storage};
use super::ops::gated::unit_of_pieces;
use super::ops::mul_mat::is_skinny;
use super::plan::Fusion;
use super::view::{MemRange, locate, may_overlap};
use crate::backend::{GraphView, MemoryMap};
use crate::graph::{Op, Tensor, TensorId};

/// Number of following nodes to search for the readers of a result.
const NEAR: usize = 16;

/// The context in which the planner decides about fusion.
#[derive(Clone, Copy)]
pub(super) struct FusionContext<'a> {
    pub(super) view: &'a GraphView<'a>,
    pub(super) memory: &'a MemoryMap,
    pub(super) precision: Precision,
    pub(super) quantized_cache: &'a QuantizedCache,
}

impl FusionContext<'_> {
    /// Returns the fusion that starts at `first`, if the nodes in `after` allow one. All nodes were checked
    /// by `ops::check`.
    pub(super) fn fusion(&self, first: TensorId, mut after: impl Iterator<Item = TensorId>) -> Option<Fusion> {
        let second = after.next()?;
        match self.view.graph.tensor(first).op {
            Op::Add => self.add_rms_norm(first, second),
            Op::MulMat | Op::MulMatId => {
                let glu = after.next().and_then(|last| self.matmul_glu([first, second, last]));
                glu.or_else(|| self.matmul_add(first, second))
            }
            _ => None,
        }
    }

    /// Returns the fusion of a sum and its norm.
    ///
    /// Each thread computes whole rows of both results while other threads compute other rows. The norm must
    /// therefore not overlap different rows of the sum or of the sum's operands.
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
        if stores_sum && at_norm.overlaps(&at_sum) {
            return None;
        }
        Some(Fusion::AddRmsNorm { eps, stores_sum })
    }

    /// Returns the fusion of a matmul and a residual sum.
    ///
    /// Each thread computes rows of the matmul in its scratch buffer and adds the rows of the other operand,
    /// which the sum may overwrite. Meanwhile, other threads read the weights and quantize the activations,
    /// so the sum must overlap neither.
    fn matmul_add(&self, first: TensorId, second: TensorId) -> Option<Fusion> {
        let graph = self.view.graph;
        let (product, sum) = (graph.tensor(first), graph.tensor(second));
        let activations = Quantization::for_matmul(graph, product, self.precision)?;
        let has_few_columns = activations.storage == Storage::PerThread && is_skinny(graph, product);
        if sum.op != Op::Add || !has_few_columns || self.view.uses.n_readers(first) != 1 {
            return None;
        }
        let other = usize::from(sum.src[0] == Some(first));
        let b = graph.tensor(sum.source(other));
        let repeats_rows = b.ne[0] == sum.ne[0] && (b.ne[1] == 1 || b.ne[1] == sum.ne[1]);
        let is_list = b.ty == GgmlType::F32 && b.is_contiguous();
        let is_list = is_list && self.find(sum.source(other))?.is_aligned_to(size_of::<f32>());
        let is_row_by_row = product.ne == sum.ne && repeats_rows && is_list;
        let at = self.find(second)?;
        let are_disjoint = self.is_disjoint_from_reads(&at, product);
        if sum.src[1 - other] != Some(first) || !is_row_by_row || !are_disjoint {
            return None;
        }
        Some(Fusion::MatmulAdd { other })
    }

    /// Returns true if `at` overlaps nothing that threads read while they compute a matmul.
    ///
    /// Threads read the weights, the expert ids, and the activations or the inputs of their norm. Activations
    /// do not count if an earlier phase quantizes them.
    fn is_disjoint_from_reads(&self, at: &MemRange, product: &Tensor) -> bool {
        let is_disjoint = |id: TensorId| self.find(id).is_some_and(|place| !place.overlaps(at));
        let x = product.source(1);
        let activations = Quantization::for_matmul(self.view.graph, product, self.precision);
        let is_x_apart = match activations.map(|activations| activations.storage) {
            Some(Storage::Shared) if self.quantized_cache.stored(x).is_none() => true,
            _ => match self.quantized_cache.norm(x) {
                Some((norm, _)) => self.view.graph.tensor(norm).sources().all(is_disjoint),
                None => is_disjoint(x),
            },
        };
        is_x_apart && is_disjoint(product.source(0)) && product.src[2].is_none_or(is_disjoint)
    }

    /// Returns the fusion of two matmuls and the gated unit that combines them.
    ///
    /// Each thread computes the same rows of both matmuls in its scratch buffer. The result must therefore
    /// not overlap anything that threads read meanwhile.
    fn matmul_glu(&self, [first, second, last]: [TensorId; 3]) -> Option<Fusion> {
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
        // Both matmuls must have the same activations and the same expert ids.
        let are_alike = a.op == b.op && a.src[1..] == b.src[1..] && a.ne == b.ne;
        let are_alike = are_alike && (a.op == Op::MulMatId || a.ne[2..] == [1, 1]);
        let activations = Quantization::for_matmul(graph, a, self.precision)?;
        let share_activations = Quantization::for_matmul(graph, b, self.precision) == Some(activations);
        let is_few_or_many = activations.storage == Storage::Shared || a.op == Op::MulMatId || is_skinny(graph, a);
        if !is_of_both || !are_alike || !share_activations || !is_few_or_many {
            return None;
        }
        let at = self.find(last)?;
        if [a, b].iter().all(|product| self.is_disjoint_from_reads(&at, product)) {
            Some(Fusion::MatmulGlu { f, gate_is_first })
        } else {
            None
        }
    }

    /// Returns the tensor through which matmuls read norm `id`, if every thread should recompute the norm
    /// when it quantizes the activations. That tensor is the norm or a reshaped view of all of it.
    ///
    /// Recomputing requires that only matmuls within the next [`NEAR`] nodes read the norm. None of the nodes up to the
    /// last of these matmuls may overwrite the norm's inputs.
    pub(super) fn recomputable_norm(
        &self,
        id: TensorId,
        after: impl Iterator<Item = TensorId> + Clone,
    ) -> Option<TensorId> {
        let graph = self.view.graph;
        let norm = graph.tensor(id);
        if !matches!(norm.op, Op::RmsNorm { .. }) {
            return None;
        }
        let after = after.take(NEAR);
        let product = |id: TensorId| {
            let node = graph.tensor(id);
            if matches!(node.op, Op::MulMat | Op::MulMatId) {
                Some(node)
            } else {
                None
            }
        };
        let mut products = after.clone().filter_map(product);
        let read = products.find_map(|product| self.as_full_view(id, product.source(1)))?;
        let wants_own = |product: &Tensor| {
            let activations = Quantization::for_matmul(graph, product, self.precision);
            activations.is_some_and(|activations| activations.storage == Storage::PerThread)
        };
        let uses = self.view.uses;
        let is_read_once = read == id || uses.n_readers(id) == 1;
        if graph.tensor(read).ne[0] != norm.ne[0] || !is_read_once {
            return None;
        }
        let mut n_readers = 0;
        for next in after {
            let is_reader = product(next).is_some_and(|product| product.source(1) == read);
            if (is_reader && !wants_own(graph.tensor(next))) || !norm.sources().all(|x| self.does_not_write(next, x)) {
                return None;
            }
            n_readers += usize::from(is_reader);
            if n_readers == uses.n_readers(read) {
                return Some(read);
            }
        }
        None
    }

    /// Returns true if `node` does not write to the memory of tensor `x`.
    fn does_not_write(&self, node: TensorId, x: TensorId) -> bool {
        let tensor = self.view.graph.tensor(node);
        let states = tensor.op.state_operand().map(|i| tensor.source(i));
        let mut written = [Some(node), states].into_iter().flatten();
        let is_disjoint = |at: &MemRange| written.all(|id| self.find(id).is_some_and(|place| !place.overlaps(at)));
        self.find(x).as_ref().is_some_and(is_disjoint)
    }

    /// Returns the quantized form in which to store the result of `last`, or `None` for f32.
    ///
    /// A result is stored in quantized form if only matmuls within the next [`NEAR`] nodes read it, all in
    /// the same form. `last` is `first` or fused with it. The returned tensor is what the matmuls read: the
    /// result or a view of all of it.
    pub(super) fn output_format(
        &self,
        first: TensorId,
        fusion: Option<Fusion>,
        last: TensorId,
        after: impl Iterator<Item = TensorId> + Clone,
    ) -> Option<(TensorId, Quantization)> {
        let graph = self.view.graph;
        // Number of elements that a thread stores at a time; `None` for whole rows.
        let part = match (fusion, graph.tensor(last).op) {
            (None, Op::RmsNorm { .. }) | (Some(Fusion::AddRmsNorm { .. }), _) => None,
            (Some(Fusion::MatmulGlu { .. }), _) => Some(unit_of_pieces(graph, graph.tensor(first), self.precision)),
            (None, Op::Attention(_)) => Some(graph.tensor(last).ne[0]),
            _ => return None,
        };
        let products = after
            .take(NEAR)
            .filter(|&id| matches!(graph.tensor(id).op, Op::MulMat | Op::MulMatId));
        let read = products
            .clone()
            .find_map(|id| self.as_full_view(last, graph.tensor(id).source(1)))?;
        let result = graph.tensor(read);
        let products = products.filter(|&id| graph.tensor(id).source(1) == read);
        let mut forms = products.map(|id| Quantization::for_matmul(graph, graph.tensor(id), self.precision));
        let form = forms.next()??;
        let n_alike = 1 + forms.filter(|&other| other == Some(form)).count();
        let at = self.find(last)?;
        // A quantized row starts at a different offset than the same row in f32, so the operands must not
        // overlap the result.
        let is_disjoint = |id: TensorId| self.find(id).is_some_and(|place| !place.overlaps(&at));
        let are_disjoint = match fusion {
            Some(Fusion::MatmulGlu { .. }) => is_disjoint(graph.tensor(first).source(1)),
            _ => [first, last]
                .iter()
                .all(|&id| (id == last || is_disjoint(id)) && graph.tensor(id).sources().all(is_disjoint)),
        };
        let fits_in_place = form.fits_in_place(result, &at) && part.is_none_or(|n| form.can_store_row_parts(n));
        let uses = self.view.uses;
        let is_read_so = n_alike == uses.n_readers(read) && (read == last || uses.n_readers(last) == 1);
        if form.storage == Storage::Shared && is_read_so && are_disjoint && fits_in_place {
            Some((read, form))
        } else {
            None
        }
    }

    /// Returns `read` if it is `result` or a reshaped view of all of it.
    fn as_full_view(&self, result: TensorId, read: TensorId) -> Option<TensorId> {
        let graph = self.view.graph;
        let (of, view) = (graph.tensor(result), graph.tensor(read));
        let is_reshaped = view.view == Some((result, 0)) && view.is_contiguous() && view.nelements() == of.nelements();
        if read == result || is_reshaped {
            Some(read)
        } else {
            None
        }
    }

    fn find(&self, id: TensorId) -> Option<MemRange> {
        locate(self.view.graph, self.memory, id).ok()
    }
}

#[cfg(test)]
mod tests;
