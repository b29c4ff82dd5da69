//! The operands by which attention, and what selects cells for it, are told which cells each token sees.

use super::Op;

/// Cells of a page, side by side: which of them belong to a sequence is a bitmask of 64 bits.
pub const PAGE: usize = 64;

/// Operands that say which cells each token sees. A sequence has a page table, as in paged attention (Kwon et al., arXiv 2309.06180): the
/// pages in which it has cells, and which of their cells these are. Tables follow one another as in a compressed sparse row matrix. What a
/// page table lists, a token sees if the positions allow it.
///
/// `T` is what stands for an operand: a tensor where a node is built, its index among the sources where one is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VisibleCells<T> {
    /// Position of each cell, negative if empty, i32 `[n_kv]`.
    pub cell_pos: T,
    /// Position of each token, i32 `[T]`.
    pub pos: T,
    /// Page table of each token, i32 `[T]`; a token without one, as of a negative number, sees nothing.
    pub table: T,
    /// Entry at which each table starts, and behind the last its end, i32 `[n_tables + 1]`.
    pub starts: T,
    /// First cell of the page of each entry, i32 `[n_entries or more]`. The cells of an entry come before those of the next in its table.
    pub pages: T,
    /// Cells of the page that belong to the sequence of the table, lowest bit first, i64 `[n_entries or more]`.
    pub masks: T,
}

const N: usize = 6;

impl<T> VisibleCells<T> {
    /// How many they are.
    pub const N: usize = N;

    /// The operands in the order in which they stand among the sources of a node.
    pub fn list(self) -> [T; N] {
        [self.cell_pos, self.pos, self.table, self.starts, self.pages, self.masks]
    }

    /// What `f` makes of each operand.
    pub fn map<U>(self, f: impl FnMut(T) -> U) -> VisibleCells<U> {
        let [cell_pos, pos, table, starts, pages, masks] = self.list().map(f);
        VisibleCells {
            cell_pos,
            pos,
            table,
            starts,
            pages,
            masks,
        }
    }
}

impl VisibleCells<usize> {
    /// Among the sources of [`Op::IndexScores`].
    pub(super) const OF_INDEX_SCORES: VisibleCells<usize> = VisibleCells::from(2);
    /// Among the sources of [`Op::SelectBlocks`].
    pub(super) const OF_SELECT_BLOCKS: VisibleCells<usize> = VisibleCells::from(1);
    /// Among the sources of [`Op::LastCells`].
    pub(super) const OF_LAST_CELLS: VisibleCells<usize> = VisibleCells::from(0);

    /// The places of the operands from place `first` on.
    pub const fn from(first: usize) -> VisibleCells<usize> {
        VisibleCells {
            cell_pos: first,
            pos: first + 1,
            table: first + 2,
            starts: first + 3,
            pages: first + 4,
            masks: first + 5,
        }
    }
}

impl Op {
    /// Where among the sources of an op those are that say what tokens see.
    pub fn visible_cells(&self) -> Option<VisibleCells<usize>> {
        match self {
            Op::Attention(p) => Some(p.operands().visible),
            Op::IndexScores => Some(VisibleCells::OF_INDEX_SCORES),
            Op::SelectBlocks(_) => Some(VisibleCells::OF_SELECT_BLOCKS),
            Op::LastCells { .. } => Some(VisibleCells::OF_LAST_CELLS),
            _ => None,
        }
    }
}
