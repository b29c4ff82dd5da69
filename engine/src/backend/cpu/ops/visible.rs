//! The KV cells that each token sees, given by page tables.

use std::ops::Range;

use super::task::Task;
use crate::graph::PAGE;

/// The operands described by [`crate::graph::VisibleCells`]. Invalid tables never yield cells outside the
/// cache.
#[derive(Clone, Copy)]
pub(super) struct Visible<'a> {
    pub(super) cell_pos: &'a [i32],
    pub(super) pos: &'a [i32],
    table: &'a [i32],
    starts: &'a [i32],
    pages: &'a [i32],
    masks: &'a [i64],
}

/// The cells of a page that belong to a sequence.
#[derive(Clone, Copy)]
pub(super) struct Page {
    /// First cell of the page.
    pub(super) first: usize,
    /// Number of cells in the page: [`PAGE`], or fewer in the last page of the cache.
    pub(super) len: usize,
    /// Bit mask of the page's cells that belong to the sequence.
    pub(super) mask: u64,
}

/// Range of positions stored in a page.
pub(super) struct Span {
    /// Lowest position.
    pub(super) low: i32,
    /// Highest position.
    pub(super) high: i32,
    /// True if the positions of adjacent cells are consecutive.
    pub(super) is_run: bool,
}

impl Span {
    /// Returns a bit mask of the cells with positions in `from..=to`, for consecutive positions.
    pub(super) fn run(&self, from: i32, to: i32) -> u64 {
        // Returns a mask of the cells with positions below `pos`.
        let below = |pos: i64| match pos - i64::from(self.low) {
            i64::MIN..=0 => 0,
            n @ 1..64 => (1 << n) - 1,
            _ => u64::MAX,
        };
        below(i64::from(to) + 1) & !below(i64::from(from))
    }
}

impl Page {
    /// Returns true if the page contains one of these cells.
    pub(super) fn overlaps(&self, cells: &Range<usize>) -> bool {
        self.len > 0 && self.first < cells.end && cells.start < self.first + self.len
    }

    /// Returns the sequence's cells.
    fn cells(self) -> impl Iterator<Item = usize> {
        (0..self.len)
            .filter(move |i| self.mask >> i & 1 == 1)
            .map(move |i| self.first + i)
    }
}

impl<'a> Visible<'a> {
    /// Creates the view from the operands of an attention-like op.
    pub(super) fn new(task: &Task<'a>) -> Visible<'a> {
        let at = task
            .node
            .op
            .visible_cells()
            .expect("only ops with visible cells reach this function");
        Visible {
            cell_pos: task.source(at.cell_pos).list(),
            pos: task.source(at.pos).list(),
            table: task.source(at.table).list(),
            starts: task.source(at.starts).list(),
            pages: task.source(at.pages).list(),
            masks: task.source(at.masks).list(),
        }
    }

    /// Returns the number of a token's page table. Tokens may share a table.
    pub(super) fn table(&self, t: usize) -> i32 {
        self.table[t]
    }

    /// Returns the entries of a token's page table.
    pub(super) fn entries(&self, t: usize) -> Range<usize> {
        let start = |table: usize| usize::try_from(*self.starts.get(table)?).ok();
        let bounds = usize::try_from(self.table[t])
            .ok()
            .and_then(|table| Some(start(table)?..start(table + 1)?));
        let Range { start, end } = bounds.unwrap_or(0..0);
        start..end.min(self.pages.len()).max(start)
    }

    /// Returns the page of a table entry.
    pub(super) fn page(&self, entry: usize) -> Page {
        let first = usize::try_from(self.pages[entry]).unwrap_or(usize::MAX);
        let len = self.cell_pos.len().saturating_sub(first).min(PAGE);
        let there = if len == PAGE { u64::MAX } else { (1 << len) - 1 };
        Page {
            first,
            len,
            mask: self.masks[entry] as u64 & there,
        }
    }

    /// Returns the range of positions in a page, including cells of other sequences.
    pub(super) fn span(&self, page: &Page) -> Span {
        let positions = &self.cell_pos[page.first.min(self.cell_pos.len())..][..page.len];
        let first = positions.first().map_or(0, |&pos| i64::from(pos));
        let none = Span {
            low: i32::MAX,
            high: i32::MIN,
            is_run: true,
        };
        (first..).zip(positions).fold(none, |span, (in_turn, &pos)| Span {
            low: span.low.min(pos),
            high: span.high.max(pos),
            is_run: span.is_run & (i64::from(pos) == in_turn),
        })
    }

    /// Returns the pages of a token's table.
    pub(super) fn pages(&self, t: usize) -> impl Iterator<Item = Page> + '_ {
        self.entries(t).map(|entry| self.page(entry))
    }

    /// Returns the occupied cells in a token's table.
    fn listed(&self, t: usize) -> impl Iterator<Item = usize> + '_ {
        let cells = self.pages(t).flat_map(Page::cells);
        cells.filter(|&cell| self.cell_pos[cell] >= 0)
    }

    /// Returns the cells that a token sees. Later positions are masked.
    pub(super) fn seen(&self, t: usize) -> impl Iterator<Item = usize> + '_ {
        self.listed(t).filter(move |&cell| self.cell_pos[cell] <= self.pos[t])
    }

    /// Returns true if a token sees a cell of one of its pages. Later positions are masked.
    pub(super) fn sees(&self, t: usize, page: &Page, cell: usize) -> bool {
        let pos = self.cell_pos[cell];
        page.mask >> (cell - page.first) & 1 == 1 && pos >= 0 && pos <= self.pos[t]
    }

    /// Returns the first cached position of the token's sequence, or 0 if no cell belongs to the sequence.
    pub(super) fn first_pos(&self, t: usize) -> i32 {
        self.listed(t).map(|cell| self.cell_pos[cell]).min().unwrap_or(0)
    }
}
