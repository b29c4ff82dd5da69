//! The KV cells that each token sees, given by page tables.

use super::array::Ints;
use crate::graph::PAGE;

/// Operands that determine the visible cells (see [`crate::graph::VisibleCells`]).
pub(super) struct Visible {
    pub(super) cell_pos: Ints,
    pub(super) pos: Ints,
    pub(super) table: Ints,
    pub(super) starts: Ints,
    pub(super) pages: Ints,
    pub(super) masks: Ints,
}

impl Visible {
    /// Returns true if the page table of token `t` lists cell `j` and the cell is occupied.
    pub(super) fn lists(&self, t: usize, j: usize) -> bool {
        let bounds = usize::try_from(self.table.data[t])
            .ok()
            .and_then(|table| self.starts.data.get(table..table + 2));
        let entries = bounds.and_then(|b| Some(usize::try_from(b[0]).ok()?..usize::try_from(b[1]).ok()?));
        let listed = |entry: usize| {
            let at = j as i64 - self.pages.data[entry];
            (0..PAGE as i64).contains(&at) && self.masks.data[entry] >> at & 1 == 1
        };
        let n_entries = self.pages.data.len();
        self.cell_pos.data[j] >= 0 && entries.is_some_and(|e| (e.start..e.end.min(n_entries)).any(listed))
    }

    /// Returns the cells that token `t` sees, with their positions. Later positions are masked.
    pub(super) fn seen(&self, t: usize) -> impl Iterator<Item = (usize, i64)> {
        let cells = self.cell_pos.data.iter().copied().enumerate();
        cells.filter(move |&(j, pos)| pos <= self.pos.data[t] && self.lists(t, j))
    }
}
