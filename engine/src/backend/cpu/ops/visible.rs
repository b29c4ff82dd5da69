//! What tokens see, as page tables say it.

use std::ops::Range;

use super::Task;
use crate::graph::PAGE;

/// The operands of [`crate::graph::VisibleCells`]. Whatever they hold, no cell is listed that is not there.
#[derive(Clone, Copy)]
pub(super) struct Visible<'a> {
    pub(super) cell_pos: &'a [i32],
    pub(super) pos: &'a [i32],
    table: &'a [i32],
    starts: &'a [i32],
    pages: &'a [i32],
    masks: &'a [i64],
}

/// Cells of a page that a sequence has.
#[derive(Clone, Copy)]
pub(super) struct Page {
    /// The first cell of the page.
    pub(super) first: usize,
    /// Cells of the page that there are: fewer than [`PAGE`] in the last.
    pub(super) len: usize,
    /// Those of the sequence by bits.
    pub(super) mask: u64,
}

/// Positions of the cells of a page.
pub(super) struct Span {
    /// The least one.
    pub(super) low: i32,
    /// The largest one.
    pub(super) high: i32,
    /// True if each is one more than that of the cell before.
    pub(super) is_run: bool,
}

impl Span {
    /// The cells of a run whose positions lie from `from` to `to`, by bits.
    pub(super) fn run(&self, from: i32, to: i32) -> u64 {
        // Bits below the one of a position, at most all.
        let below = |pos: i64| match pos - i64::from(self.low) {
            i64::MIN..=0 => 0,
            n @ 1..64 => (1 << n) - 1,
            _ => u64::MAX,
        };
        below(i64::from(to) + 1) & !below(i64::from(from))
    }
}

impl Page {
    /// True if some cell of the page is among these.
    pub(super) fn overlaps(&self, cells: &Range<usize>) -> bool {
        self.len > 0 && self.first < cells.end && cells.start < self.first + self.len
    }

    /// Those of the sequence.
    fn cells(self) -> impl Iterator<Item = usize> {
        (0..self.len)
            .filter(move |i| self.mask >> i & 1 == 1)
            .map(move |i| self.first + i)
    }
}

impl<'a> Visible<'a> {
    /// Of an op that has such operands.
    pub(super) fn new(task: &Task<'a>) -> Visible<'a> {
        let at = task.node.op.visible_cells().expect("the op looks at cells");
        Visible {
            cell_pos: task.source(at.cell_pos).list(),
            pos: task.source(at.pos).list(),
            table: task.source(at.table).list(),
            starts: task.source(at.starts).list(),
            pages: task.source(at.pages).list(),
            masks: task.source(at.masks).list(),
        }
    }

    /// The number of a token's page table, the same for tokens that share one.
    pub(super) fn table(&self, t: usize) -> i32 {
        self.table[t]
    }

    /// The entries of a token's page table.
    pub(super) fn entries(&self, t: usize) -> Range<usize> {
        let start = |table: usize| usize::try_from(*self.starts.get(table)?).ok();
        let bounds = usize::try_from(self.table[t])
            .ok()
            .and_then(|table| Some(start(table)?..start(table + 1)?));
        let Range { start, end } = bounds.unwrap_or(0..0);
        start..end.min(self.pages.len()).max(start)
    }

    /// The page of an entry.
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

    /// The positions of the cells of a page, whoever has them.
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

    /// The pages of a token's table.
    pub(super) fn pages(&self, t: usize) -> impl Iterator<Item = Page> + '_ {
        self.entries(t).map(|entry| self.page(entry))
    }

    /// The cells in use that a token's table lists.
    fn listed(&self, t: usize) -> impl Iterator<Item = usize> + '_ {
        let cells = self.pages(t).flat_map(Page::cells);
        cells.filter(|&cell| self.cell_pos[cell] >= 0)
    }

    /// The cells that a token sees, later positions hidden.
    pub(super) fn seen(&self, t: usize) -> impl Iterator<Item = usize> + '_ {
        self.listed(t).filter(move |&cell| self.cell_pos[cell] <= self.pos[t])
    }

    /// True if a token sees a cell of one of its pages, later positions hidden.
    pub(super) fn sees(&self, t: usize, page: &Page, cell: usize) -> bool {
        let pos = self.cell_pos[cell];
        page.mask >> (cell - page.first) & 1 == 1 && pos >= 0 && pos <= self.pos[t]
    }

    /// The first position of the token's sequence; 0 if no cell holds it.
    pub(super) fn first_pos(&self, t: usize) -> i32 {
        self.listed(t).map(|cell| self.cell_pos[cell]).min().unwrap_or(0)
    }
}
