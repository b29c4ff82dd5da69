//! Reversible edits that a scheduler makes to a finished graph: copied operands, redirected operands, and
//! buffer assignments. Undoing them allows the graph to be split and allocated again.

use super::{BufferSlice, Graph, Tensor, TensorId};

/// Undo log of a scheduler's edits.
#[derive(Clone, Default, Debug)]
pub(super) struct Edits {
    /// Redirected operands: node, operand index, and previous operand.
    redirected: Vec<(TensorId, usize, TensorId)>,
    copies: Vec<TensorId>,
    /// Tensors whose buffer was assigned by an allocator. May be shorter than the arena.
    placed: Vec<bool>,
}

impl Edits {
    pub(super) fn clear(&mut self) {
        self.redirected.clear();
        self.copies.clear();
        self.placed.clear();
    }
}

impl Graph {
    /// Adds a leaf with the type, shape, strides and layout of `of`, as the destination of a copy.
    pub(crate) fn insert_copy(&mut self, of: TensorId) -> TensorId {
        let original = self.tensor(of);
        let copy = Tensor {
            nb: original.nb,
            layout: original.layout,
            ..Tensor::new(original.ty, original.ne, original.name)
        };
        let id = self.push(copy);
        self.edits.copies.push(id);
        id
    }

    /// Replaces operand `i` of `node`.
    pub(crate) fn redirect(&mut self, node: TensorId, i: usize, to: TensorId) {
        let before = self.tensor(node).source(i);
        self.tensor_mut(node).src[i] = Some(to);
        self.edits.redirected.push((node, i, before));
    }

    /// Assigns a buffer slice found by an allocator.
    pub(crate) fn place(&mut self, id: TensorId, home: BufferSlice) {
        if self.tensor_mut(id).home.replace(home).is_none() {
            let placed = &mut self.edits.placed;
            placed.resize(placed.len().max(id.index() + 1), false);
            placed[id.index()] = true;
        }
    }

    /// Returns true if the tensor had a buffer before allocation, as weights and caches do.
    pub(crate) fn is_external(&self, id: TensorId) -> bool {
        self.tensor(id).home.is_some() && !self.edits.placed.get(id.index()).is_some_and(|&p| p)
    }

    /// Reverts all copies, redirections and buffer assignments.
    pub(crate) fn undo_edits(&mut self) {
        while let Some((node, i, before)) = self.edits.redirected.pop() {
            self.tensor_mut(node).src[i] = Some(before);
        }
        for id in self.ids() {
            if self.edits.placed.get(id.index()).is_some_and(|&p| p) {
                self.tensor_mut(id).home = None;
            }
        }
        self.edits.placed.clear();
        // A copy that is followed by newer tensors stays in the arena without references.
        while let Some(id) = self.edits.copies.pop() {
            if id.index() + 1 == self.len() {
                self.pop_last();
            }
        }
    }
}
