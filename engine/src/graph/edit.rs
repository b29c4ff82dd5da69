//! What a scheduler does to a finished graph: copies of operands, redirected operands, homes. All of it can be undone, so
//! that the same graph can be split and placed again.

use super::{Graph, Home, Tensor, TensorId};

/// Record of a scheduler's changes.
#[derive(Clone, Default, Debug)]
pub(super) struct Edits {
    /// Node, operand number, the operand it had.
    redirected: Vec<(TensorId, usize, TensorId)>,
    copies: Vec<TensorId>,
    /// By tensor: its home comes from an allocator. May be shorter than the arena.
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
    /// Adds a leaf with the type, shape, strides and layout of `of`, to be filled by copying that tensor's bytes.
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

    /// Makes operand `i` of `node` another tensor.
    pub(crate) fn redirect(&mut self, node: TensorId, i: usize, to: TensorId) {
        let before = self.tensor(node).source(i);
        self.tensor_mut(node).src[i] = Some(to);
        self.edits.redirected.push((node, i, before));
    }

    /// Gives a tensor the home that an allocator found for it.
    pub(crate) fn place(&mut self, id: TensorId, home: Home) {
        if self.tensor_mut(id).home.replace(home).is_none() {
            let placed = &mut self.edits.placed;
            placed.resize(placed.len().max(id.index() + 1), false);
            placed[id.index()] = true;
        }
    }

    /// True if the tensor had a home before any allocator saw the graph: a weight or a cache.
    pub(crate) fn is_external(&self, id: TensorId) -> bool {
        self.tensor(id).home.is_some() && !self.edits.placed.get(id.index()).is_some_and(|&p| p)
    }

    /// Takes back copies, redirections and homes.
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
        // If tensors were added after a copy, the copy stays in the arena; nothing refers to it.
        while let Some(id) = self.edits.copies.pop() {
            if id.index() + 1 == self.len() {
                self.pop_last();
            }
        }
    }
}
