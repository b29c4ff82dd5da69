//! Reversible edits that a scheduler makes to a finished graph: copied operands, redirected operands, and buffer
//! assignments. Undoing the edits allows the graph to be split and allocated again.

use super::TensorId;

/// Undo log of a scheduler's edits.
#[derive(Clone, Default, Debug)]
pub(super) struct Edits {
    /// Redirected operands: node, operand index, and previous operand.
    pub(super) redirected: Vec<(TensorId, usize, TensorId)>,
    pub(super) copies: Vec<TensorId>,
    /// Tensors whose buffer was assigned by an allocator. May be shorter than the arena.
    pub(super) placed: Vec<bool>,
}

impl Edits {
    pub(super) fn clear(&mut self) {
        self.redirected.clear();
        self.copies.clear();
        self.placed.clear();
    }
}
