//! Attention of many queries by a unit that multiplies tiles, or by integers. Keys and values of some pages are prepared for that, once for all queries of a unit. Then each block of
//! queries gets its scores with all of these pages, one step of the online softmax, and sums of values.

use std::ops::Range;

use kernels::attention::tiles::{
    self as kernel, PageOf, Running, ScoreOperands, TILE_QUERIES, ValueOperands, WeightOperands,
};

use super::state::State;
use super::{MAX_UNIT, Operands, Room, Sizes, Unit, cache_rows};
use crate::backend::cpu::ops::visible::Page;
use crate::backend::cpu::scratch::take;
use crate::graph::PAGE;

/// Most pages that are prepared together.
pub(super) const MOST_PAGES: usize = 8;

/// Bytes of keys that are prepared together, unless those of a page are more: with values, scores and weights they stay in a second-level cache.
const KEY_BYTES: usize = 512 << 10;

/// Pages that are prepared together, for keys of `dk` elements.
fn pages_together(dk: usize) -> usize {
    (KEY_BYTES / kernel::bytes_of_keys(dk, 1)).clamp(1, MOST_PAGES)
}

/// Memory for operands of the unit and for scores.
pub(super) struct TileRoom<'a> {
    pub(super) queries: &'a mut [u8],
    keys: &'a mut [u8],
    values: &'a mut [u8],
    weights: &'a mut [u8],
    scores: &'a mut [f32],
}

impl<'a> TileRoom<'a> {
    pub(super) fn new(scratch: &mut &'a mut [f32], s: &Sizes) -> TileRoom<'a> {
        let [queries, keys, values, weights, scores] = Self::sizes(s).map(|floats| take(scratch, floats));
        TileRoom {
            queries: bytemuck::cast_slice_mut(queries),
            keys: bytemuck::cast_slice_mut(keys),
            values: bytemuck::cast_slice_mut(values),
            weights: bytemuck::cast_slice_mut(weights),
            scores,
        }
    }

    /// Floats that it takes.
    pub(super) fn floats(s: &Sizes) -> usize {
        Self::sizes(s).iter().sum()
    }

    /// Floats of queries, keys, values, weights and scores.
    fn sizes(s: &Sizes) -> [usize; 5] {
        if !s.by_tiles {
            return [0; 5];
        }
        let (n, n_pages) = (TILE_QUERIES, pages_together(s.dk));
        // Queries that do not fill their tiles are read beyond their end.
        let queries = kernel::bytes_of_queries(s.max_queries() + n, s.dk);
        let (keys, values) = (
            kernel::bytes_of_keys(s.dk, n_pages),
            kernel::bytes_of_values(s.dv, n_pages),
        );
        let bytes = [queries, keys, values, kernel::bytes_of_weights(n, n_pages)];
        let [queries, keys, values, weights] = bytes.map(|bytes| bytes.div_ceil(size_of::<f32>()));
        [queries, keys, values, weights, kernel::n_scores(n, n_pages)]
    }
}

/// Some entries of a page table, and what the tokens of a unit see there.
struct Pages<'a> {
    entries: Range<usize>,
    /// Cells by bits, for each token a word for each page.
    seen: &'a [u64],
    /// Those that any token sees.
    any: [u64; MOST_PAGES],
}

impl Pages<'_> {
    fn len(&self) -> usize {
        self.entries.len()
    }
}

/// What some tokens see of each page, from what each sees.
fn seen_by_any(seen: &[u64], n_pages: usize) -> [u64; MOST_PAGES] {
    let mut any = [0; MOST_PAGES];
    for seen in seen.chunks_exact(n_pages) {
        any.iter_mut().zip(seen).for_each(|(any, seen)| *any |= seen);
    }
    any
}

/// From the first page that is seen to the last.
fn range_seen(any: &[u64]) -> Option<Range<usize>> {
    let is_seen = |seen: &u64| *seen != 0;
    Some(any.iter().position(is_seen)?..any.iter().rposition(is_seen)? + 1)
}

/// The pages that are seen, as ranges: nothing is prepared of others.
fn runs_seen(any: &[u64]) -> impl Iterator<Item = Range<usize>> + '_ {
    let mut end = 0;
    any.chunk_by(|a, b| (*a == 0) == (*b == 0)).filter_map(move |run| {
        end += run.len();
        (run[0] != 0).then_some(end - run.len()..end)
    })
}

impl Operands<'_> {
    /// Attends the unit's queries to the pages of some entries. `next` are the key head and the page that are read after them.
    pub(super) fn attend_by_tiles(
        &self,
        unit: &Unit,
        entries: Range<usize>,
        next: Option<(usize, Page)>,
        state: &mut State<'_>,
        room: &mut Room<'_>,
    ) {
        let together = pages_together(self.s.dk);
        for first in entries.clone().step_by(together) {
            let end = entries.end.min(first + together);
            let of_head = (end < entries.end).then(|| (unit.head, self.visible.page(end)));
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
            if self.prepare(unit, &pages, of_head.or(next), room) {
                self.attend_to_pages(unit, &pages, state, room);
            } else {
                self.attend_one_by_one(unit, &pages, state, room);
            }
        }
    }

    /// Prepares the pages that are seen. False if a key or a value is not finite and so cannot be.
    fn prepare(&self, unit: &Unit, pages: &Pages<'_>, next: Option<(usize, Page)>, room: &mut Room<'_>) -> bool {
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
            let next = match page + 1 < n_pages {
                true => Some((unit.head, self.visible.page(entry + 1))),
                false => next,
            };
            let (at, of_entry) = (PageOf { page, n_pages }, self.visible.page(entry));
            let keys = cache_rows(&self.k, unit.head, 1, &of_entry, next);
            if !kernel::put_keys(&keys, wanted, at, room.tiles.keys, room.kernel) {
                return false;
            }
            let values = cache_rows(&self.v, unit.head, 1, &of_entry, next);
            if !kernel::put_values(&values, wanted, at, room.tiles.values, room.kernel) {
                return false;
            }
        }
        true
    }

    /// Attends the unit's queries to pages that are prepared, as many at a time as the unit for tiles takes.
    fn attend_to_pages(&self, unit: &Unit, pages: &Pages<'_>, state: &mut State<'_>, room: &mut Room<'_>) {
        let n = unit.tokens().len() * self.s.group();
        // Blocks begin at the same queries, however many a unit has.
        for block in (0..n).step_by(self.s.together()) {
            let end = n.min(block + self.s.together());
            for first in (block..end).step_by(TILE_QUERIES) {
                self.attend_with(unit, first..end.min(first + TILE_QUERIES), pages, state, room);
            }
        }
    }

    /// The same with some of the unit's queries.
    fn attend_with(
        &self,
        unit: &Unit,
        queries: Range<usize>,
        pages: &Pages<'_>,
        state: &mut State<'_>,
        room: &mut Room<'_>,
    ) {
        let (s, n_pages, group) = (&self.s, pages.len(), self.s.group());
        let seen = &pages.seen[queries.start / group * n_pages..queries.end.div_ceil(group) * n_pages];
        let wanted = seen_by_any(seen, n_pages);
        let Some(range) = range_seen(&wanted) else {
            return;
        };
        self.score(unit, queries.clone(), pages, &wanted, &mut room.tiles);
        let factors = &mut room.factors[..queries.len()];
        let weights = WeightOperands {
            scores: room.tiles.scores,
            n_pages,
            pages: range,
            seen,
            group,
            before: queries.start % group,
            running: Running {
                max: &mut state.max[queries.clone()],
                sum: &mut state.sum[queries.clone()],
                factors,
            },
        };
        kernel::weights(weights, room.tiles.weights);
        let sums = &mut state.values[queries.start * s.dv..queries.end * s.dv];
        for pages in runs_seen(&wanted[..n_pages]) {
            let values = ValueOperands {
                values: room.tiles.values,
                d: s.dv,
                n_pages,
                pages,
                weights: room.tiles.weights,
                factors,
            };
            kernel::add_values(&values, sums, room.kernel);
            factors.fill(1.0);
        }
    }

    /// The scores of some of the unit's queries with the pages of which cells are `wanted`.
    fn score(
        &self,
        unit: &Unit,
        queries: Range<usize>,
        pages: &Pages<'_>,
        wanted: &[u64; MOST_PAGES],
        room: &mut TileRoom<'_>,
    ) {
        let n_pages = pages.len();
        let operands = ScoreOperands {
            keys: room.keys,
            d: self.s.dk,
            wanted: &wanted[..n_pages],
            queries: room.queries,
            first: queries.start,
            n: queries.len(),
        };
        kernel::scores(&operands, room.scores);
        for (page, entry) in pages.entries.clone().enumerate().filter(|&(page, _)| wanted[page] != 0) {
            let rows = room
                .scores
                .chunks_mut(kernel::score_stride(n_pages))
                .take(queries.len());
            let of_page = rows.map(|row| &mut row[page * PAGE..(page + 1) * PAGE]);
            self.adjust(unit, unit.head, queries.start, &self.visible.page(entry), of_page);
        }
    }

    /// The same page by page without the unit, which leaves out what is not seen: a weight of zero times infinity is no zero.
    fn attend_one_by_one(&self, unit: &Unit, pages: &Pages<'_>, state: &mut State<'_>, room: &mut Room<'_>) {
        let n_pages = pages.len();
        for (i, entry) in pages.entries.clone().enumerate().filter(|&(i, _)| pages.any[i] != 0) {
            let mut seen = [0u64; MAX_UNIT];
            let seen = &mut seen[..unit.tokens().len()];
            for (seen, of_token) in seen.iter_mut().zip(pages.seen.chunks_exact(n_pages)) {
                *seen = of_token[i];
            }
            self.attend_to_page(unit, &self.visible.page(entry), None, seen, state, room);
        }
    }
}
