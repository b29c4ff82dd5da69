//! What tokens see, as page tables say it.

use super::array::Ints;
use crate::graph::PAGE;

/// The operands of [`crate::graph::VisibleCells`].
pub(super) struct Visible {
    pub(super) cell_pos: Ints,
    pub(super) pos: Ints,
    pub(super) table: Ints,
    pub(super) starts: Ints,
    pub(super) pages: Ints,
    pub(super) masks: Ints,
}

impl Visible {
    /// Does the page table of token `t` list cell `j`, and is the cell in use?
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

    /// The cells that token `t` sees, later positions hidden, with their positions.
    pub(super) fn seen(&self, t: usize) -> impl Iterator<Item = (usize, i64)> {
        let cells = self.cell_pos.data.iter().copied().enumerate();
        cells.filter(move |&(j, pos)| pos <= self.pos.data[t] && self.lists(t, j))
    }
}
