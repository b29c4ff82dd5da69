//! The operands of attention, and its computation over single pages.

use std::ops::Range;

use kernels::attention::tiles::TILE_QUERIES;
use kernels::attention::{self as kernel, CacheRows};
use kernels::rows;

use super::biases::{Biases, alibi_slope};
use super::scratch::AttentionScratch;
use super::sizes::{AttentionUnit, Parts, Sizes};
use super::state::State;
use crate::backend::cpu::ops::task::Task;
use crate::backend::cpu::ops::visible::{Page, Span, Visible};
use crate::backend::cpu::view::Source;
use crate::graph::{Attention, PAGE, Window};

/// The operands of an attention node.
pub(super) struct Operands<'a> {
    p: &'a Attention,
    pub(super) s: Sizes,
    q: Source<'a>,
    pub(super) k: Source<'a>,
    pub(super) v: Source<'a>,
    pub(super) visible: Visible<'a>,
    sinks: Option<Source<'a>>,
    biases: Option<Biases<'a>>,
    /// Selected cells per token, or per token and KV head. Each list has the same length.
    selection: Option<Selection<'a>>,
}

/// Lists of selected cells.
#[derive(Clone, Copy)]
struct Selection<'a> {
    cells: &'a [i32],
    /// Number of cells per list.
    n: usize,
    /// Lists per token: 1, or the number of KV heads.
    lists: usize,
}

impl<'a> Operands<'a> {
    pub(super) fn new(task: &Task<'a>, p: &'a Attention) -> Operands<'a> {
        let at = p.operands().map(|i| task.source(i));
        let s = Sizes::new(
            &at.map(|source| source.tensor),
            task.planned.allow_reassociation,
            task.share.nth,
        );
        Operands {
            p,
            s,
            q: at.q,
            k: at.k,
            v: at.v,
            visible: Visible::new(task),
            sinks: at.sinks,
            selection: at.selection.map(|cells| Selection {
                cells: cells.list(),
                n: cells.ne()[0],
                lists: Attention::lists_per_token(cells.ne(), s.n_head_kv, s.n_tokens).unwrap_or(1),
            }),
            biases: at.biases.map(|table| Biases::new(table, p.buckets)),
        }
    }

    /// Returns true if all heads see the same cells.
    pub(super) fn sees_alike(&self) -> bool {
        self.selection.is_none_or(|selection| selection.lists == 1)
    }

    /// Returns true if token `t` and its neighbors with the same page table have enough queries to amortize
    /// packing keys and values. All units of a page table get the same result, regardless of their length.
    pub(super) fn by_tiles(&self, t: usize) -> bool {
        let enough = TILE_QUERIES.div_ceil(self.s.group());
        let shares_table = |other: &usize| self.visible.table(*other) == self.visible.table(t);
        let before = || (0..t).rev().take_while(shares_table).take(enough).count();
        let after = || (t..self.s.n_tokens).take_while(shares_table).take(enough).count();
        self.s.by_tiles && before() + after() >= enough
    }

    /// Returns the division of token `t`'s page table into parts.
    pub(super) fn parts(&self, t: usize) -> Parts {
        Parts::new(self.visible.entries(t).len(), self.by_tiles(t))
    }

    /// Returns the entries of token `t`'s page table that belong to a part.
    pub(super) fn entries(&self, t: usize, part: usize) -> Range<usize> {
        let entries = self.visible.entries(t);
        let n_pages = self.parts(t).pages;
        let first = entries.start.saturating_add(part * n_pages).min(entries.end);
        first..entries.end.min(first.saturating_add(n_pages))
    }

    /// Prefetches the first keys and values of a part while the queries are loaded.
    pub(super) fn fetch_first(&self, unit: &AttentionUnit, part: usize) {
        if let Some(page) = self.first_page(unit.first, part)
            && page.len > 0
        {
            for source in [&self.k, &self.v] {
                cache_rows(source, unit.head, unit.heads, &page, None).prefetch_first();
            }
        }
    }

    /// Returns the first page of a part, or `None` if the part is empty.
    pub(super) fn first_page(&self, t: usize, part: usize) -> Option<Page> {
        self.entries(t, part).next().map(|entry| self.visible.page(entry))
    }

    /// Stores a bit mask of the cells of a page that each token of the unit sees, and returns the union of
    /// the masks.
    pub(super) fn look<'s>(&self, unit: &AttentionUnit, page: &Page, seen: impl Iterator<Item = &'s mut u64>) -> u64 {
        let span = self.visible.span(page);
        seen.zip(unit.tokens()).fold(0, |any, (seen, t)| {
            *seen = self.seen(t, page, &span);
            if *seen != 0 {
                *seen &= self.selected(unit.head, t, page.first);
            }
            any | *seen
        })
    }

    /// Computes attention of the unit's queries over the cells of a page given by the bit masks `seen`.
    /// `next` is the KV head and the page that will be read afterwards.
    pub(super) fn attend_to_page(
        &self,
        unit: &AttentionUnit,
        page: &Page,
        next: Option<(usize, Page)>,
        seen: &[u64],
        state: &mut State<'_>,
        workspace: &mut AttentionScratch<'_>,
    ) {
        #[cfg(test)]
        super::tests::N_SCORED.set(super::tests::N_SCORED.get() + unit.heads);
        let s = &self.s;
        let of_heads = |source| cache_rows(source, unit.head, unit.heads, page, next);
        let (keys, values) = (of_heads(&self.k), of_heads(&self.v));
        // Masked cells are never read, so that infinities or NaN of other sequences cannot leak into the
        // result.
        for (i, seen) in seen.chunks(s.block).enumerate() {
            let wanted = seen.iter().fold(0, |any, seen| any | seen);
            if wanted == 0 {
                continue;
            }
            // Only units of a single head have several blocks.
            let (first, of_head) = (i * s.together(), seen.len() * s.group());
            let queries = first..first + unit.heads * of_head;
            let n = queries.len();
            let (scores, factors) = (&mut workspace.scores[..n * PAGE], &mut workspace.factors[..n]);
            let of_block = &workspace.queries[queries.start * s.dk..queries.end * s.dk];
            kernel::scores(&keys, wanted, of_block, scores, workspace.kernel);
            let (max, sum) = (&mut state.max[queries.clone()], &mut state.sum[queries.clone()]);
            for head in 0..unit.heads {
                let of_head = &mut scores[head * of_head * PAGE..(head + 1) * of_head * PAGE];
                self.adjust(unit, unit.head + head, first, page, of_head.chunks_exact_mut(PAGE));
            }
            // All queries of a single token see the same cells.
            let together = if seen.len() == 1 { n } else { of_head };
            for at in (0..n).step_by(together).map(|at| at..at + together) {
                kernel::softmax_step(
                    &mut scores[at.start * PAGE..at.end * PAGE],
                    seen,
                    &mut max[at.clone()],
                    &mut sum[at.clone()],
                    &mut factors[at],
                );
            }
            let sums = &mut state.values[queries.start * s.dv..queries.end * s.dv];
            kernel::add_values(&values, seen, scores, factors, sums, workspace.kernel);
        }
    }

    /// Loads the unit's queries, ordered by KV head and token, multiplied by the scale.
    pub(super) fn load_queries(&self, unit: &AttentionUnit, workspace: &mut AttentionScratch<'_>) {
        let (group, of_head) = (self.s.group(), unit.queries_of_head(self.s.group()));
        let out = &mut workspace.queries[..unit.heads * of_head * self.s.dk];
        for (i, out) in out.chunks_exact_mut(self.s.dk).enumerate() {
            let (head, i) = (unit.head + i / of_head, i % of_head);
            self.q
                .copy_row([head * group + i % group, unit.first + i / group, 0], out);
            rows::scale_in_place(out, self.p.scale, 0.0);
        }
        if self.by_tiles(unit.first) {
            kernel::tiles::pack_queries(out, self.s.dk, workspace.tiles.queries);
        }
    }

    /// Returns a bit mask of the cells of a page that token `t` sees. `span` describes the positions in the
    /// page.
    fn seen(&self, t: usize, page: &Page, span: &Span) -> u64 {
        let (from, to) = self.range(t);
        if page.mask == 0 || span.low > to {
            return 0;
        }
        if span.low >= from && span.high <= to {
            return page.mask;
        }
        if self.p.compressed_from.is_none() {
            if span.high < from {
                return 0;
            }
            if span.is_run {
                return page.mask & span.run(from, to);
            }
        }
        // Number of cells in the page that represent single tokens rather than compressed groups.
        let n_single = self.p.compressed_from.map_or(PAGE, |c| c.saturating_sub(page.first));
        let positions = &self.visible.cell_pos[page.first..page.first + page.len];
        let in_range = positions.iter().enumerate().fold(0, |bits, (i, &pos)| {
            let from = if i < n_single { from } else { 0 };
            bits | u64::from((pos >= from) & (pos <= to)) << i
        });
        in_range & page.mask
    }

    /// Returns a bit mask of the 64 cells starting at `first` that are selected for token `t` and KV head
    /// `head`.
    fn selected(&self, head: usize, t: usize, first: usize) -> u64 {
        let Some(Selection { cells, n, lists }) = self.selection else {
            return u64::MAX;
        };
        // Cells of single tokens are always selected.
        let start = self.p.compressed_from.unwrap_or(0);
        let single = match start.saturating_sub(first) {
            n if n < PAGE => (1u64 << n) - 1,
            _ => return u64::MAX,
        };
        let list = t * lists + head % lists;
        let cells = cells[list * n..(list + 1) * n].iter();
        cells.fold(single, |bits, &cell| {
            match usize::try_from(cell).ok().and_then(|c| (c + start).checked_sub(first)) {
                Some(i) if i < PAGE => bits | 1 << i,
                _ => bits,
            }
        })
    }

    /// Returns the range of positions that the causal rule and the window allow for token `t`. The start is
    /// not negative.
    fn range(&self, t: usize) -> (i32, i32) {
        let pos = i64::from(self.visible.pos[t]);
        let size = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        let (from, to) = match self.p.window {
            Window::None | Window::Compressed(_) => (0, i64::MAX),
            Window::Sliding(n) => (pos.saturating_sub(size(n)).saturating_add(1), i64::MAX),
            Window::Chunked(n) => {
                let first = pos / size(n) * size(n);
                (first, first.saturating_add(size(n) - 1))
            }
            Window::Symmetric(n) => (pos.saturating_sub(size(n / 2)), pos.saturating_add(size(n / 2))),
        };
        let to = if self.p.causal { to.min(pos) } else { to };
        let limit = i64::from(i32::MAX);
        (from.clamp(0, limit) as i32, to.clamp(-1, limit) as i32)
    }

    /// Applies softcap, ALiBi, and relative position biases to the raw scores of a page.
    ///
    /// `scores` yields the rows of the queries of KV head `head`, starting at query `first`.
    pub(super) fn adjust<'s>(
        &self,
        unit: &AttentionUnit,
        head: usize,
        first: usize,
        page: &Page,
        scores: impl Iterator<Item = &'s mut [f32]>,
    ) {
        if self.p.softcap == 0.0 && self.p.max_bias == 0.0 && self.biases.is_none() {
            return;
        }
        let group = self.s.group();
        for (i, scores) in (first..).zip(scores) {
            let (head, t) = (head * group + i % group, unit.first + i / group);
            self.adjust_query(head, t, page.first, &mut scores[..page.len]);
        }
    }

    /// Applies [`Operands::adjust`] to the scores of one query with the cells starting at `first`.
    fn adjust_query(&self, head: usize, t: usize, first: usize, scores: &mut [f32]) {
        if self.p.softcap != 0.0 {
            rows::softcap_in_place(scores, self.p.softcap);
        }
        if self.p.max_bias != 0.0 {
            let slope = alibi_slope(self.p.max_bias, head, self.s.n_head);
            for (x, &pos) in scores.iter_mut().zip(&self.visible.cell_pos[first..]) {
                *x -= slope * (i64::from(self.visible.pos[t]) - i64::from(pos)).abs() as f32;
            }
        }
        if let Some(biases) = &self.biases {
            for (x, &pos) in scores.iter_mut().zip(&self.visible.cell_pos[first..]) {
                let ahead = i64::from(pos) - i64::from(self.visible.pos[t]);
                *x += biases.of(self.p.buckets, self.s.n_head, head, ahead);
            }
        }
    }

    /// Adds the sinks, divides by the sums, and writes the results.
    pub(super) fn finish(&self, unit: &AttentionUnit, state: &mut State<'_>, task: &Task<'_>) {
        let (s, group) = (&self.s, self.s.group());
        let of_head = unit.queries_of_head(group);
        for i in 0..unit.heads * of_head {
            let (head, t) = (
                (unit.head + i / of_head) * group + i % group,
                unit.first + i % of_head / group,
            );
            if let Some(sinks) = &self.sinks
                && state.sum[i] != 0.0
            {
                let sink = sinks.float([head, 0, 0, 0]);
                state.raise(i, state.max[i].max(sink));
                state.sum[i] += (sink - state.max[i]).exp();
            }
            let sum = state.sum[i];
            let values = state.values_of(i);
            if sum != 0.0 {
                rows::scale_in_place(values, 1.0 / sum, 0.0);
            } else {
                values.fill(0.0);
            }
            // SAFETY: each head and token belongs to exactly one unit, and one thread finishes each unit
            // once.
            unsafe {
                match task.planned.stores {
                    Some(form) => form.store_part(t, head * s.dv, values, &task.target),
                    None => task.target.row(head + s.n_head * t).copy_from_slice(values),
                }
            }
        }
    }
}

/// Returns the keys or values of a page for `heads` heads, starting at `head`. `next` is the head and the
/// page that will be read afterwards.
pub(super) fn cache_rows<'a>(
    source: &Source<'a>,
    head: usize,
    heads: usize,
    page: &Page,
    next: Option<(usize, Page)>,
) -> CacheRows<'a> {
    let t = source.tensor;
    let rows = |(head, page): (usize, Page)| source.block([head, page.first, 0], [heads, page.len]);
    CacheRows {
        ty: t.ty,
        bytes: rows((head, *page)),
        stride: t.nb[2],
        heads,
        head_stride: t.nb[1],
        n: page.len,
        d: t.ne[0],
        next: match next {
            Some(next) if next.1.len > 0 => rows(next),
            _ => &[],
        },
    }
}
