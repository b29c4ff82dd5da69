//! Operands that define which cells each token sees, for attention and cell selection.

/// Cells per page. The cells of a page that belong to a sequence form a 64-bit mask.
pub const PAGE: usize = 64;

/// Operands that define the cells visible to each token.
///
/// A sequence has a page table, as in PagedAttention (Kwon et al., arXiv 2309.06180). The table lists its pages and,
/// for each page, a mask of its cells. The tables are concatenated as in a compressed sparse row matrix. A token sees
/// the cells in its page table that the position rules allow.
///
/// `T` is a tensor id when a node is built, or a source index when a node is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VisibleCells<T> {
    /// Position of each cell, i32 `[n_kv]`; negative if empty.
    pub cell_pos: T,
    /// Position of each token, i32 `[T]`.
    pub pos: T,
    /// Index of each token's page table, i32 `[T]`; a token with a negative index sees no cells.
    pub table: T,
    /// First entry of each table, followed by the end of the last, i32 `[n_tables + 1]`.
    pub starts: T,
    /// First cell of each entry's page, i32 `[n_entries or more]`; ascending within a table.
    pub pages: T,
    /// Cells of the page that belong to the sequence, lowest bit first, i64 `[n_entries or more]`.
    pub masks: T,
}

const N: usize = 6;

impl<T> VisibleCells<T> {
    /// Number of operands that describe visible cells.
    pub const N: usize = N;

    /// Returns the operands in source order.
    pub fn list(self) -> [T; N] {
        [self.cell_pos, self.pos, self.table, self.starts, self.pages, self.masks]
    }

    /// Applies `f` to every operand.
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
    /// Indices of these operands in the sources of [`super::Op::IndexScores`].
    pub(super) const OF_INDEX_SCORES: VisibleCells<usize> = VisibleCells::from(2);
    /// Indices of these operands in the sources of [`super::Op::SelectBlocks`].
    pub(super) const OF_SELECT_BLOCKS: VisibleCells<usize> = VisibleCells::from(1);
    /// Indices of these operands in the sources of [`super::Op::RecentCells`].
    pub(super) const OF_RECENT_CELLS: VisibleCells<usize> = VisibleCells::from(0);

    /// Returns consecutive source indices starting at `first`.
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
