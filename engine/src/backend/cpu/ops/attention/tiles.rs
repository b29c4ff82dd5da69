//! Attention of many queries with tile kernels (AMX, or integer dot products).
//!
//! Keys and values of some pages are packed once for all queries of a unit. Each block of queries then
//! computes its scores with all of these pages, one step of the online softmax, and the weighted sums of
//! values.

use std::ops::Range;

use kernels::attention::tiles::{
    self as kernel, OperandPage, ScoreOperands, SoftmaxState, TILE_QUERIES, ValueOperands, WeightOperands,
};

use super::operands::{Operands, cache_rows};
use super::scratch::{AttentionScratch, TileScratch};
use super::sizes::{AttentionUnit, MAX_UNIT, MOST_PAGES, pages_together};
use super::state::State;
use crate::backend::cpu::ops::visible::Page;
use crate::graph::PAGE;

/// Range of page table entries, with the cells that the tokens of a unit see in these pages.
struct Pages<'a> {
    entries: Range<usize>,
    /// Bit masks of visible cells, `[n_tokens, n_pages]`.
    seen: &'a [u64],
    /// Union of the masks over all tokens, per page.
    any: [u64; MOST_PAGES],
}

impl Pages<'_> {
    fn len(&self) -> usize {
        self.entries.len()
    }
}

/// Returns the union of the masks over all tokens, per page.
fn seen_by_any(seen: &[u64], n_pages: usize) -> [u64; MOST_PAGES] {
    let mut any = [0; MOST_PAGES];
    for seen in seen.chunks_exact(n_pages) {
        any.iter_mut().zip(seen).for_each(|(any, seen)| *any |= seen);
    }
    any
}

/// Returns the range from the first to the last visible page.
fn range_seen(any: &[u64]) -> Option<Range<usize>> {
    let is_seen = |seen: &u64| *seen != 0;
    Some(any.iter().position(is_seen)?..any.iter().rposition(is_seen)? + 1)
}

/// Returns the visible pages as ranges. Other pages are not packed.
fn runs_seen(any: &[u64]) -> impl Iterator<Item = Range<usize>> + '_ {
    let mut end = 0;
    any.chunk_by(|a, b| (*a == 0) == (*b == 0)).filter_map(move |run| {
        let start = end;
        end += run.len();
        if run[0] == 0 { None } else { Some(start..end) }
    })
}

impl Operands<'_> {
    /// Computes attention of the unit's queries over some entries of the page table. `next` is the KV head
    /// and the page that will be read afterwards.
    pub(super) fn attend_by_tiles(
        &self,
        unit: &AttentionUnit,
        entries: Range<usize>,
        next: Option<(usize, Page)>,
        state: &mut State<'_>,
        workspace: &mut AttentionScratch<'_>,
    ) {
        let together = pages_together(self.s.dk);
        for first in entries.clone().step_by(together) {
            let end = entries.end.min(first + together);
            let next = if end < entries.end {
                Some((unit.head, self.visible.page(end)))
            } else {
                next
            };
            let mut seen = [0u64; MAX_UNIT * MOST_PAGES];
            let seen = &mut seen[..unit.tokens().len() * (end - first)];
            for (i, entry) in (first..end).enumerate() {
                let of_page = seen.iter_mut().skip(i).step_by(end - first);
                self.look(unit, &self.visible.page(entry), of_page);
            }
            let pages = Pages {
                entries: first..end,
                any: seen_by_any(seen, end - first),
                seen,
            };
            if self.prepare(unit, &pages, next, workspace) {
                self.attend_to_pages(unit, &pages, state, workspace);
            } else {
                self.attend_one_by_one(unit, &pages, state, workspace);
            }
        }
    }

    /// Packs the visible pages. Returns false if a key or value is not finite, in which case the tile kernel
    /// cannot be used.
    fn prepare(
        &self,
        unit: &AttentionUnit,
        pages: &Pages<'_>,
        next: Option<(usize, Page)>,
        workspace: &mut AttentionScratch<'_>,
    ) -> bool {
        let n_pages = pages.len();
        for (page, entry) in pages.entries.clone().enumerate() {
            let wanted = pages.any[page];
            if wanted == 0 {
                continue;
            }
            #[cfg(test)]
            for count in [&super::tests::N_SCORED, &super::tests::N_PREPARED] {
                count.set(count.get() + 1);
            }
            let next = if page + 1 < n_pages {
                Some((unit.head, self.visible.page(entry + 1)))
            } else {
                next
            };
            let (at, of_entry) = (OperandPage { page, n_pages }, self.visible.page(entry));
            let keys = cache_rows(&self.k, unit.head, 1, &of_entry, next);
            if !kernel::pack_keys(&keys, wanted, at, workspace.tiles.keys, workspace.kernel) {
                return false;
            }
            let values = cache_rows(&self.v, unit.head, 1, &of_entry, next);
            if !kernel::pack_values(&values, wanted, at, workspace.tiles.values, workspace.kernel) {
                return false;
            }
        }
        true
    }

    /// Computes attention of the unit's queries over packed pages, one tile of queries at a time.
    fn attend_to_pages(
        &self,
        unit: &AttentionUnit,
        pages: &Pages<'_>,
        state: &mut State<'_>,
        workspace: &mut AttentionScratch<'_>,
    ) {
        let n = unit.tokens().len() * self.s.group();
        // Blocks start at the same queries for any number of queries per unit.
        for block in (0..n).step_by(self.s.together()) {
            let end = n.min(block + self.s.together());
            for first in (block..end).step_by(TILE_QUERIES) {
                self.attend_with(unit, first..end.min(first + TILE_QUERIES), pages, state, workspace);
            }
        }
    }

    /// Computes attention of a range of the unit's queries over packed pages.
    fn attend_with(
        &self,
        unit: &AttentionUnit,
        queries: Range<usize>,
        pages: &Pages<'_>,
        state: &mut State<'_>,
        workspace: &mut AttentionScratch<'_>,
    ) {
        let (s, n_pages, group) = (&self.s, pages.len(), self.s.group());
        let seen = &pages.seen[queries.start / group * n_pages..queries.end.div_ceil(group) * n_pages];
        let wanted = seen_by_any(seen, n_pages);
        let Some(range) = range_seen(&wanted) else {
            return;
        };
        self.score(unit, queries.clone(), pages, &wanted, &mut workspace.tiles);
        let factors = &mut workspace.factors[..queries.len()];
        let weights = WeightOperands {
            scores: workspace.tiles.scores,
            n_pages,
            pages: range,
            seen,
            group,
            before: queries.start % group,
            values: workspace.tiles.values,
            d: s.dv,
            running: SoftmaxState {
                max: &mut state.max[queries.clone()],
                sum: &mut state.sum[queries.clone()],
                factors,
            },
        };
        kernel::weights(weights, workspace.tiles.weights);
        let sums = &mut state.values[queries.start * s.dv..queries.end * s.dv];
        for pages in runs_seen(&wanted[..n_pages]) {
            let values = ValueOperands {
                values: workspace.tiles.values,
                d: s.dv,
                n_pages,
                pages,
                weights: workspace.tiles.weights,
                factors,
            };
            kernel::add_values(&values, sums, workspace.kernel);
            factors.fill(1.0);
        }
    }

    /// Computes the scores of a range of the unit's queries with the pages that have `wanted` cells.
    fn score(
        &self,
        unit: &AttentionUnit,
        queries: Range<usize>,
        pages: &Pages<'_>,
        wanted: &[u64; MOST_PAGES],
        workspace: &mut TileScratch<'_>,
    ) {
        let n_pages = pages.len();
        let operands = ScoreOperands {
            keys: workspace.keys,
            d: self.s.dk,
            mask: &wanted[..n_pages],
            queries: workspace.queries,
            first: queries.start,
            n: queries.len(),
        };
        kernel::scores(&operands, workspace.scores);
        for (page, entry) in pages.entries.clone().enumerate().filter(|&(page, _)| wanted[page] != 0) {
            let rows = workspace
                .scores
                .chunks_mut(kernel::score_stride(n_pages))
                .take(queries.len());
            let of_page = rows.map(|row| &mut row[page * PAGE..(page + 1) * PAGE]);
            self.adjust(unit, unit.head, queries.start, &self.visible.page(entry), of_page);
        }
    }

    /// Computes attention page by page without the tile kernel, and skips masked cells. Required for
    /// non-finite values, since a weight of zero times infinity is NaN.
    fn attend_one_by_one(
        &self,
        unit: &AttentionUnit,
        pages: &Pages<'_>,
        state: &mut State<'_>,
        workspace: &mut AttentionScratch<'_>,
    ) {
        let n_pages = pages.len();
        for (i, entry) in pages.entries.clone().enumerate().filter(|&(i, _)| pages.any[i] != 0) {
            let mut seen = [0u64; MAX_UNIT];
            let seen = &mut seen[..unit.tokens().len()];
            for (seen, of_token) in seen.iter_mut().zip(pages.seen.chunks_exact(n_pages)) {
                *seen = of_token[i];
            }
            self.attend_to_page(unit, &self.visible.page(entry), None, seen, state, workspace);
        }
    }
}
