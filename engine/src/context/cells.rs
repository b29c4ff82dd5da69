//! Bookkeeping of a KV cache pool: position and sequences of every cell, without tensor data.

use crate::graph::{NO_ROW, PAGE, Window};

use super::axes::Lags;
use super::batch::{BatchToken, MAX_SEQUENCES, SeqSet};
use super::pages::{PageTables, Pages, filled};

/// Position of an empty cell.
pub(super) const EMPTY: i32 = -1;

/// Lowest query position of each sequence. Cells hidden from all queries by the window may be overwritten.
#[derive(Clone, Copy, Debug)]
pub(super) struct Queries<'a> {
    /// Next position of each sequence in the state that a failed decode restores.
    pub before: &'a [i32; MAX_SEQUENCES],
    /// Lowest query position of each sequence in the current and later ubatches.
    pub now: &'a [i32; MAX_SEQUENCES],
}

/// Previous contents of a cell, for undo.
#[derive(Clone, Copy, Debug)]
pub(super) struct CellUndo {
    cell: usize,
    pos: i32,
    lag: i32,
    seqs: SeqSet,
}

/// Progress of the search for free cells in a ubatch.
#[derive(Default)]
struct Search {
    /// All pages below this index are in use.
    empty: usize,
    /// All pages below this index are full.
    any: usize,
    /// First sequences of those whose exclusive pages are full.
    full: SeqSet,
}

/// Pool of cells shared by all layers with the same window.
#[derive(Clone, Debug)]
pub(super) struct Cells {
    pub window: Window,
    n_cells: usize,
    n_seqs: usize,
    pages: Pages,
    pos: Vec<i32>,
    /// Difference between the following token's positions along the axes of M-RoPE and its position in the sequence.
    lag: Vec<i32>,
    seqs: Vec<SeqSet>,
    /// Position shift since the keys were last rotated.
    shift: Vec<i32>,
    shifted: bool,
    /// Index after the last occupied cell.
    top: usize,
    n_used: usize,
}

impl Cells {
    /// Creates a pool of `n` cells for `n_seqs` sequences; call [`Cells::allocate`] before use.
    pub fn new(n: usize, n_seqs: usize, window: Window) -> Cells {
        Cells {
            window,
            n_cells: n,
            n_seqs,
            pages: Pages::default(),
            pos: Vec::new(),
            lag: Vec::new(),
            seqs: Vec::new(),
            shift: Vec::new(),
            shifted: false,
            top: 0,
            n_used: 0,
        }
    }

    /// Allocates all cells; returns false if out of memory.
    pub fn allocate(&mut self) -> bool {
        filled(&mut self.pos, self.n_cells, EMPTY)
            && filled(&mut self.lag, self.n_cells, 0)
            && filled(&mut self.seqs, self.n_cells, SeqSet::default())
            && filled(&mut self.shift, self.n_cells, 0)
            && self.pages.allocate(self.n_cells, self.n_seqs)
    }

    /// Returns the number of bytes that [`Cells::allocate`] requests.
    pub fn n_bytes(&self) -> usize {
        let per_cell = 3 * size_of::<i32>() + size_of::<SeqSet>();
        let pages = Pages::n_bytes(self.n_cells, self.n_seqs);
        self.n_cells.saturating_mul(per_cell).saturating_add(pages)
    }

    pub fn len(&self) -> usize {
        self.n_cells
    }

    pub fn n_used(&self) -> usize {
        self.n_used
    }

    /// Returns the index after the last cell in use.
    pub fn top(&self) -> usize {
        self.top
    }

    pub fn positions(&self) -> &[i32] {
        &self.pos
    }

    pub fn lags(&self) -> &[i32] {
        &self.lag
    }

    pub fn seqs(&self) -> &[SeqSet] {
        &self.seqs
    }

    /// Returns the number of tokens that a cell represents.
    pub fn n_tokens_each(&self) -> usize {
        match self.window {
            Window::Compressed(n) => n.max(1),
            _ => 1,
        }
    }

    /// Returns true if cells are only freed explicitly, that is, if the window never hides a cell.
    fn keeps_all(&self) -> bool {
        matches!(self.window, Window::None | Window::Compressed(_))
    }

    /// Assigns a cell to each token (for compressed groups, to the last token) and writes the indices to
    /// `out`. Cells that no current or restorable query can see may be overwritten. Returns false without
    /// changes if the pool is full.
    pub fn place(
        &mut self,
        tokens: &[BatchToken],
        queries: Queries<'_>,
        out: &mut [i64],
        undo: &mut Vec<CellUndo>,
    ) -> bool {
        let mark = undo.len();
        let group = self.n_tokens_each() as i64;
        let mut search = Search::default();
        for (t, slot) in tokens.iter().zip(out) {
            if (i64::from(t.pos) + 1) % group != 0 {
                *slot = NO_ROW;
                continue;
            }
            let Some(cell) = self.find(t.seqs, queries, &mut search) else {
                while undo.len() > mark {
                    let last = undo.pop().expect("journal is longer than the mark");
                    self.restore(last);
                }
                return false;
            };
            undo.push(CellUndo {
                cell,
                pos: self.pos[cell],
                lag: self.lag[cell],
                seqs: self.seqs[cell],
            });
            self.put(cell, t.pos, t.seqs);
            self.lag[cell] = t.axes.lag;
            *slot = cell as i64;
        }
        true
    }

    /// Finds a free cell for a token: in a page used only by these sequences, else in an empty page, else in
    /// any page.
    fn find(&mut self, seqs: SeqSet, queries: Queries<'_>, search: &mut Search) -> Option<usize> {
        if let Some(cell) = self.pages.current(seqs).and_then(|page| self.free_in(page, queries)) {
            return Some(cell);
        }
        let first = SeqSet::one(seqs.first()?);
        if !search.full.intersects(first) {
            let mut own = self.pages.exclusive(seqs);
            if let Some(cell) = own.find_map(|page| self.free_in(page, queries)) {
                drop(own);
                self.pages.set_current(seqs, cell / PAGE);
                return Some(cell);
            }
            search.full = search.full.union(first);
        }
        if let Some(page) = self.pages.empty_from(search.empty) {
            search.empty = page + 1;
            self.pages.set_current(seqs, page);
            return Some(page * PAGE);
        }
        search.empty = usize::MAX;
        let cell = (search.any..self.len().div_ceil(PAGE)).find_map(|page| self.free_in(page, queries))?;
        search.any = cell / PAGE;
        Some(cell)
    }

    /// Returns the first free cell of a page.
    fn free_in(&self, page: usize, queries: Queries<'_>) -> Option<usize> {
        let cells = page * PAGE..self.len().min((page + 1) * PAGE);
        if self.keeps_all() {
            let cell = cells.start + self.pages.used(page).trailing_ones() as usize;
            return if cells.contains(&cell) { Some(cell) } else { None };
        }
        cells.into_iter().find(|&cell| self.is_free(cell, queries))
    }

    /// Appends the page table of a sequence with its lowest query at `from`, without cells that are hidden
    /// from such queries.
    pub fn push_table(&self, seq: usize, from: i32, first_cell: usize, tables: &mut PageTables) {
        let low = self.hidden_below(from);
        for (first, mask) in self.pages.of(seq) {
            let hidden = |i: &usize| self.pos[first + i] < low;
            let visible = match low {
                i32::MIN..=0 => mask,
                _ => {
                    (0..PAGE.min(self.len() - first))
                        .filter(|i| !hidden(i))
                        .fold(0, |bits, i| bits | 1 << i)
                        & mask
                }
            };
            tables.push(first_cell + first, visible);
        }
    }

    /// Reverts a placement. In a windowed pool the overwritten data is lost, so the cell becomes empty; no
    /// query could see that data.
    pub fn restore(&mut self, undo: CellUndo) {
        let keep = self.keeps_all();
        let (pos, seqs) = if keep {
            (undo.pos, undo.seqs)
        } else {
            (EMPTY, SeqSet::default())
        };
        self.set(undo.cell, pos, seqs);
        self.lag[undo.cell] = undo.lag;
    }

    /// Returns true if a cell at `pos` is hidden from all current and future queries of `seqs`. `q_min[s]` is
    /// the lowest query position of sequence `s`.
    pub fn is_hidden(&self, pos: i32, seqs: SeqSet, q_min: &[i32; MAX_SEQUENCES]) -> bool {
        seqs.iter().all(|s| pos < self.hidden_below(q_min[s]))
    }

    /// Returns the lowest position visible to queries at `q` or later. Only causal windows hide earlier
    /// positions permanently.
    fn hidden_below(&self, q: i32) -> i32 {
        match self.window {
            Window::Sliding(n) => q.saturating_add(1).saturating_sub_unsigned(n as u32),
            Window::Chunked(n) => q / n as i32 * n as i32,
            Window::None | Window::Symmetric(_) | Window::Compressed(_) => i32::MIN,
        }
    }

    /// Sets the contents of a cell whose keys are already rotated for `pos`; an empty set clears the cell.
    pub fn put(&mut self, cell: usize, pos: i32, seqs: SeqSet) {
        self.set(cell, pos, seqs);
        self.shift[cell] = 0;
    }

    /// Sets the distance of the following token's positions along the axes.
    pub fn set_lag(&mut self, cell: usize, lag: i32) {
        self.lag[cell] = lag;
    }

    /// Makes every sequence continue in the page of its last position, as if its cells had been placed one by
    /// one.
    pub fn resume(&mut self) {
        let mut last = [EMPTY; MAX_SEQUENCES];
        for cell in 0..self.top {
            let pos = self.pos[cell];
            for s in self.seqs[cell].iter() {
                if pos <= last[s] {
                    continue;
                }
                last[s] = pos;
                self.pages.set_current(SeqSet::one(s), cell / PAGE);
            }
        }
    }

    /// Removes `seq` from cells with positions in `from..to`.
    pub fn remove(&mut self, seq: usize, from: i32, to: i32) {
        self.update(|pos, seqs| {
            if seqs.contains(seq) && pos >= from && pos < to {
                seqs.without(SeqSet::one(seq))
            } else {
                seqs
            }
        });
    }

    /// Adds sequence `to` to the cells of `from` with positions in `p0..p1`.
    pub fn copy(&mut self, from: usize, to: usize, p0: i32, p1: i32) {
        self.update(|pos, seqs| {
            if seqs.contains(from) && pos >= p0 && pos < p1 {
                seqs.union(SeqSet::one(to))
            } else {
                seqs
            }
        });
    }

    /// Removes sequences from all cells.
    pub fn remove_all(&mut self, removed: SeqSet) {
        self.update(|_, seqs| seqs.without(removed));
    }

    /// Removes all sequences except `seq`.
    pub fn keep(&mut self, seq: usize) {
        self.update(|_, seqs| seqs.intersection(SeqSet::one(seq)));
    }

    /// Shifts the positions of `seq` in `from..to` by `delta`; cells with negative results are cleared.
    pub fn add(&mut self, seq: usize, from: i32, to: i32, delta: i32) {
        for cell in 0..self.top {
            let pos = self.pos[cell];
            if !self.seqs[cell].contains(seq) || pos < from || pos >= to {
                continue;
            }
            match pos.checked_add(delta).filter(|&p| p >= 0) {
                Some(moved) => {
                    self.pos[cell] = moved;
                    self.shift[cell] += delta;
                    self.shifted = true;
                }
                None => self.set(cell, EMPTY, SeqSet::default()),
            }
        }
        self.settle();
    }

    /// Returns true if `seq` shares a cell in the range with other sequences, so that the position cannot be
    /// shifted.
    pub fn shares(&self, seq: usize, from: i32, to: i32) -> bool {
        (0..self.top).any(|c| {
            let s = self.seqs[c];
            s.contains(seq) && s != SeqSet::one(seq) && self.pos[c] >= from && self.pos[c] < to
        })
    }

    /// Clears all cells.
    pub fn clear(&mut self) {
        self.update(|_, _| SeqSet::default());
        self.shifted = false;
        self.shift.fill(0);
    }

    /// Returns the shift of each cell since the keys were last rotated; `None` if no cell was shifted.
    pub fn pending_shift(&self) -> Option<&[i32]> {
        if self.shifted { Some(&self.shift) } else { None }
    }

    /// Resets the pending shifts after the keys were rotated.
    pub fn shift_done(&mut self) {
        self.shift.fill(0);
        self.shifted = false;
    }

    /// Returns the lowest and highest position of a sequence.
    pub fn range(&self, seq: usize) -> Option<(i32, i32)> {
        let mut range: Option<(i32, i32)> = None;
        for cell in 0..self.top {
            if self.seqs[cell].contains(seq) {
                let p = self.pos[cell];
                range = Some(range.map_or((p, p), |(lo, hi)| (lo.min(p), hi.max(p))));
            }
        }
        range
    }

    /// Returns the number of cells of a sequence with positions in `from..to`.
    pub fn count(&self, seq: usize, from: i32, to: i32) -> usize {
        (0..self.top)
            .filter(|&c| self.seqs[c].contains(seq) && self.pos[c] >= from && self.pos[c] < to)
            .count()
    }

    /// Raises `next_pos[s]` to the position after the last cell of each sequence `s`, and sets its distance along the
    /// axes.
    pub fn raise_next(&self, next_pos: &mut [i32; MAX_SEQUENCES], lags: &mut Lags) {
        for cell in 0..self.top {
            let (next, seqs) = (self.pos[cell] + 1, self.seqs[cell]);
            for s in seqs.iter() {
                if next_pos[s] < next {
                    next_pos[s] = next;
                    lags.0[s] = self.lag[cell];
                }
            }
        }
    }

    fn is_free(&self, cell: usize, queries: Queries<'_>) -> bool {
        let pos = self.pos[cell];
        self.seqs[cell].iter().all(|s| {
            let before = queries.before[s];
            // Cells written by the current decode are not part of the state before it.
            let is_visible = pos < before && pos >= self.hidden_below(before);
            !is_visible && pos < self.hidden_below(queries.now[s])
        })
    }

    fn set(&mut self, cell: usize, pos: i32, seqs: SeqSet) {
        let (was, is) = (!self.seqs[cell].is_empty(), !seqs.is_empty());
        self.n_used = self.n_used + is as usize - was as usize;
        self.pos[cell] = if is { pos } else { EMPTY };
        self.pages.change(cell, self.seqs[cell], seqs);
        self.seqs[cell] = seqs;
        if is {
            self.top = self.top.max(cell + 1);
        } else {
            self.settle();
        }
    }

    fn update(&mut self, f: impl Fn(i32, SeqSet) -> SeqSet) {
        for cell in 0..self.top {
            let (pos, old) = (self.pos[cell], self.seqs[cell]);
            let new = f(pos, old);
            if new != old {
                self.n_used -= new.is_empty() as usize;
                self.pages.change(cell, old, new);
                self.seqs[cell] = new;
                if new.is_empty() {
                    self.pos[cell] = EMPTY;
                }
            }
        }
        self.settle();
    }

    fn settle(&mut self) {
        while self.top > 0 && self.seqs[self.top - 1].is_empty() {
            self.top -= 1;
        }
    }
}

/// Returns the lowest query position of each sequence: the position of its first token, else its next position.
pub(super) fn lowest_queries(tokens: &[BatchToken], next_pos: &[i32; MAX_SEQUENCES]) -> [i32; MAX_SEQUENCES] {
    let mut q = *next_pos;
    for t in tokens {
        for s in t.seqs.iter() {
            q[s] = q[s].min(t.pos);
        }
    }
    q
}

#[cfg(test)]
mod tests {
    use super::super::AxisPosition;
    use super::*;

    fn cells(n: usize, window: Window) -> Cells {
        let mut cells = Cells::new(n, 8, window);
        assert!(cells.allocate());
        cells
    }

    fn token(pos: i32, seqs: u64) -> BatchToken {
        BatchToken {
            token: 0,
            pos,
            seqs: SeqSet::of((0..8).filter(|s| seqs >> s & 1 == 1)),
            output: false,
            n_best: 0,
            media: None,
            axes: AxisPosition::default(),
        }
    }

    fn place(c: &mut Cells, tokens: &[BatchToken], q: i32) -> Option<Vec<i64>> {
        let (mut out, q) = (vec![0; tokens.len()], [q; MAX_SEQUENCES]);
        let queries = Queries { before: &q, now: &q };
        c.place(tokens, queries, &mut out, &mut Vec::new()).then_some(out)
    }

    #[test]
    fn place_takes_lowest_free_cells() {
        let mut c = cells(4, Window::None);
        assert_eq!(
            place(&mut c, &[token(0, 1), token(1, 1), token(2, 1)], 0),
            Some(vec![0, 1, 2])
        );
        assert_eq!(
            place(&mut c, &[token(3, 1), token(4, 1)], 3),
            None,
            "a full pool is left unchanged"
        );
        assert_eq!((c.n_used(), c.top()), (3, 3));
        c.remove(0, 1, 2);
        assert_eq!(place(&mut c, &[token(3, 1), token(4, 1)], 3), Some(vec![1, 3]));
        assert_eq!(c.range(0), Some((0, 4)));
    }

    #[test]
    fn window_recycles_hidden_cells() {
        let mut c = cells(4, Window::Sliding(2));
        assert!(place(&mut c, &[token(0, 1), token(1, 1), token(2, 1)], 0).is_some());
        // The query at position 3 sees positions 2 and 3.
        assert_eq!(place(&mut c, &[token(3, 1)], 3), Some(vec![0]));
        assert_eq!(place(&mut c, &[token(4, 1)], 4), Some(vec![1]));
        assert_eq!(c.count(0, 3, 5), 2);
    }

    #[test]
    fn window_keeps_cells_needed_for_rollback() {
        let mut c = cells(8, Window::Sliding(3));
        let fill: Vec<_> = (0..4).map(|pos| token(pos, 1)).collect();
        assert!(place(&mut c, &fill, 0).is_some());
        // The sequence continues at 4 and sees 2 and 3; a decode advances to 8 in ubatches of one token.
        let (before, mut undo) = ([4; MAX_SEQUENCES], Vec::new());
        let cells: Vec<i64> = (4..9)
            .map(|pos| {
                let (now, mut out) = ([pos; MAX_SEQUENCES], [0]);
                let queries = Queries {
                    before: &before,
                    now: &now,
                };
                assert!(c.place(&[token(pos, 1)], queries, &mut out, &mut undo));
                out[0]
            })
            .collect();
        // Cells 2 and 3 are protected. Cells that the decode itself no longer sees are reused.
        assert_eq!(cells, [0, 1, 4, 0, 1]);
        undo.into_iter().rev().for_each(|u| c.restore(u));
        assert_eq!((c.count(0, 2, 4), c.n_used()), (2, 2));
    }

    #[test]
    fn compressed_group_takes_cell_at_last_token() {
        let mut c = cells(2, Window::Compressed(3));
        let tokens = [1, 2, 3, 4].map(|pos| token(pos, 1));
        assert_eq!(place(&mut c, &tokens, 0), Some(vec![NO_ROW, 0, NO_ROW, NO_ROW]));
        assert_eq!(
            place(&mut c, &[token(5, 1)], 5),
            Some(vec![1]),
            "no cell is overwritten"
        );
        assert_eq!(place(&mut c, &[token(6, 1)], 6), Some(vec![NO_ROW]));
        assert_eq!(place(&mut c, &[token(8, 1)], 8), None);
        assert_eq!((c.n_used(), c.range(0)), (2, Some((2, 5))));
    }

    #[test]
    fn copied_sequences_share_cells() {
        let mut c = cells(4, Window::None);
        place(&mut c, &[token(0, 1), token(1, 1)], 0);
        c.copy(0, 1, 0, i32::MAX);
        assert!(c.shares(0, 0, 9));
        c.remove(0, 0, i32::MAX);
        assert_eq!((c.range(0), c.range(1), c.n_used()), (None, Some((0, 1)), 2));
        c.keep(0);
        assert_eq!((c.n_used(), c.top()), (0, 0));
    }

    #[test]
    fn add_drops_negative_positions() {
        let mut c = cells(4, Window::None);
        place(&mut c, &[token(0, 1), token(1, 1), token(2, 1)], 0);
        c.add(0, 0, i32::MAX, -1);
        assert_eq!(c.range(0), Some((0, 1)));
        assert_eq!(c.pending_shift().unwrap()[1..3], [-1, -1]);
        assert_eq!(place(&mut c, &[token(2, 1)], 2), Some(vec![0]));
    }

    #[test]
    fn restore_reverts_placements() {
        let mut c = cells(4, Window::None);
        let mut undo = Vec::new();
        place(&mut c, &[token(0, 1)], 0);
        let q = [1; MAX_SEQUENCES];
        let queries = Queries { before: &q, now: &q };
        assert!(c.place(&[token(1, 1), token(2, 1)], queries, &mut [0; 2], &mut undo));
        while let Some(u) = undo.pop() {
            c.restore(u);
        }
        assert_eq!((c.n_used(), c.top(), c.range(0)), (1, 1, Some((0, 0))));
    }

    /// Returns the number of page table entries of sequences, each with its lowest query.
    fn n_entries(c: &Cells, queries: &[(usize, i32)]) -> usize {
        let mut tables = PageTables::default();
        queries
            .iter()
            .for_each(|&(seq, from)| c.push_table(seq, from, 0, &mut tables));
        tables.pages.len()
    }

    #[test]
    fn interleaved_sequences_use_exclusive_pages() {
        for n_seqs in [1, 2, 8] {
            let mut c = cells(n_seqs * 3 * PAGE, Window::None);
            for pos in 0..150 {
                let tokens: Vec<_> = (0..n_seqs).map(|seq| token(pos, 1 << seq)).collect();
                assert!(place(&mut c, &tokens, pos).is_some());
            }
            let queries: Vec<_> = (0..n_seqs).map(|seq| (seq, 149)).collect();
            assert_eq!(
                n_entries(&c, &queries),
                n_seqs * 3,
                "{n_seqs} sequences use exclusive pages"
            );
        }
    }

    #[test]
    fn forked_sequence_continues_in_own_page() {
        let mut c = cells(4 * PAGE, Window::None);
        for pos in 0..70 {
            assert!(place(&mut c, &[token(pos, 1)], pos).is_some());
        }
        c.copy(0, 1, 0, i32::MAX);
        for pos in 70..90 {
            assert!(place(&mut c, &[token(pos, 1), token(pos, 2)], pos).is_some());
        }
        // Two pages of the shared prompt, and one page for each sequence.
        assert_eq!(n_entries(&c, &[(0, 89)]), 3);
        assert_eq!(n_entries(&c, &[(0, 89), (1, 89)]), 6);
        assert_eq!(c.top(), 2 * PAGE + PAGE + 20);
        // The remaining sequence continues in its own page.
        c.remove(1, 0, i32::MAX);
        assert_eq!(place(&mut c, &[token(90, 1)], 90), Some(vec![2 * PAGE as i64 + 20]));
    }

    #[test]
    fn pages_are_shared_when_pool_is_small() {
        let mut c = cells(PAGE + 10, Window::None);
        let tokens: Vec<_> = (0..6).map(|seq| token(0, 1 << seq)).collect();
        let found = place(&mut c, &tokens, 0).unwrap();
        assert_eq!(found[..2], [0, PAGE as i64]);
        assert!((1..12).all(|pos| {
            place(
                &mut c,
                &tokens.iter().map(|t| BatchToken { pos, ..*t }).collect::<Vec<_>>(),
                pos,
            )
            .is_some()
        }));
        assert_eq!(c.n_used(), 72);
        assert!(
            place(&mut c, &[token(12, 1), token(12, 2)], 12).is_some(),
            "every cell is used"
        );
        assert!(place(&mut c, &[token(13, 1)], 13).is_none());
    }

    #[test]
    fn page_table_omits_cells_hidden_by_window() {
        let mut c = cells(4 * PAGE, Window::Sliding(10));
        for pos in 0..3 * PAGE as i32 {
            assert!(c.place(
                &[token(pos, 1)],
                Queries {
                    before: &[0; MAX_SEQUENCES],
                    now: &[0; MAX_SEQUENCES]
                },
                &mut [0],
                &mut Vec::new()
            ));
        }
        let mut tables = PageTables::default();
        c.push_table(0, 130, 1000, &mut tables);
        // The query at 130 sees 121 to 130; a later query sees up to 191.
        assert_eq!(tables.pages, [1000 + PAGE as i32, 1000 + 2 * PAGE as i32]);
        assert_eq!(tables.masks, [!0 << 57, !0]);
    }

    /// After random operations, page tables match the sequence sets of the cells.
    #[test]
    fn page_tables_match_cell_sets() {
        let mut random = 1u32;
        let mut below = |n: u32| {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (random >> 8) % n
        };
        for window in [Window::None, Window::Sliding(9)] {
            let mut c = cells(200, window);
            let mut undo = Vec::new();
            for step in 0..600 {
                let (seq, other, pos) = (below(8) as usize, below(8) as usize, below(60) as i32);
                match below(9) {
                    0 => c.copy(seq, other, pos, pos + 20),
                    1 => c.remove(seq, pos, pos + 30),
                    2 => c.keep(seq),
                    3 => c.add(seq, pos, pos + 9, -5),
                    4 => undo.drain(..).rev().for_each(|u| c.restore(u)),
                    _ => {
                        undo.clear();
                        let tokens: Vec<_> = (pos..pos + 9).map(|p| token(p, 1 << seq | 1 << other)).collect();
                        let q = [pos; MAX_SEQUENCES];
                        c.place(&tokens, Queries { before: &q, now: &q }, &mut [0; 9], &mut undo);
                    }
                }
                for seq in 0..8 {
                    let mut expected = PageTables::default();
                    expected.push_cells(seq, c.seqs().iter().copied());
                    let mut found = PageTables::default();
                    c.push_table(seq, 0, 0, &mut found);
                    assert_eq!(
                        (found.pages, found.masks),
                        (expected.pages, expected.masks),
                        "step {step}"
                    );
                }
                let used = c.seqs().iter().filter(|s| !s.is_empty()).count();
                assert_eq!(c.n_used(), used);
            }
        }
    }
}
