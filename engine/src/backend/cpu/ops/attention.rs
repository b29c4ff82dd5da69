//! Attention with online softmax over a paged KV cache. Only the scores of one page exist at a time, or of a
//! few pages where the CPU has tile kernels.
//!
//! A unit of work consists of some tokens with the same page table and the query heads of one KV head, so
//! that each cached row serves many queries. With few queries, reading the cache dominates. Since the heads
//! of a cell are adjacent in memory, a unit then covers all heads, if that leaves enough work to share.
//!
//! The pages of a unit are divided into parts, and the results of the parts are merged in order. The division
//! depends only on the page table, so that results do not depend on the number of threads. If there are many
//! units, each is computed by one thread. If there are few (one token), threads share the parts.

mod biases;
mod state;
mod tiles;

use std::ops::Range;

use kernels::attention::tiles::TILE_QUERIES;
use kernels::attention::{self as kernel, CacheRows, FEW_QUERIES};
use kernels::{FAST_COLUMNS, rows};

use self::biases::{Biases, alibi_slope};
use self::state::State;
use self::tiles::TileScratch;
use super::visible::{Page, Span, Visible};
use super::{ScratchSize, Task};
use crate::backend::cpu::scratch::take;
use crate::backend::cpu::view::Source;
use crate::graph::{Attention, AttentionOperands, Graph, PAGE, Tensor, Window};

/// Maximum number of queries (tokens times heads) per unit, unless more heads share a KV head.
const QUERIES: usize = 48;

/// Queries per block for tile kernels: a whole number of tiles, also for three query heads per KV head.
const BLOCK_QUERIES: usize = 96;

/// Maximum number of blocks per unit. Larger units amortize packing keys and values for the tile kernel.
const MAX_BLOCKS: usize = 4;

/// Maximum number of tokens per unit.
const MAX_UNIT: usize = MAX_BLOCKS * BLOCK_QUERIES;

/// Minimum number of units per thread when units have several blocks.
const UNITS_FOR_BLOCKS: usize = 6;

/// Minimum number of parts per thread for units that cover all heads.
const MANY_PARTS: usize = 2;

/// Minimum number of pages per part.
const MIN_PART: usize = 2;

/// Minimum number of pages per part for tile kernels, which process a part quickly. Parts are multiples of
/// this.
const MIN_TILE_PART: usize = tiles::MOST_PAGES;

/// Maximum number of parts per unit.
const MAX_PARTS: usize = 32;

/// Number of units per thread from which each unit is computed by one thread.
const MANY_UNITS: usize = 2;

/// Maximum size of the shared results of parts, in floats. If they would need more, each unit is computed by
/// one thread.
const MAX_SHARED: usize = 1 << 22;

const _: () = assert!(PAGE == kernel::KEYS);

/// Shapes of the attention operands.
#[derive(Clone, Copy)]
struct Sizes {
    dk: usize,
    dv: usize,
    n_head: usize,
    n_head_kv: usize,
    n_tokens: usize,
    n_kv: usize,
    /// True if tile kernels may be used; see [`Operands::by_tiles`].
    by_tiles: bool,
    /// Tokens per block, at least 1.
    block: usize,
    /// Maximum number of blocks per unit.
    n_blocks: usize,
}

impl Sizes {
    /// Derives the sizes from the operands.
    ///
    /// Tile kernels are used for batches of [`FAST_COLUMNS`] or more tokens if `allow_reassociation` permits
    /// lower precision, as for matmuls.
    fn new(at: &AttentionOperands<&Tensor>, allow_reassociation: bool, nth: usize) -> Sizes {
        let by_tiles = allow_reassociation && at.q.ne[2] >= FAST_COLUMNS && kernel::tiles::has_tiles();
        let (n_head, n_head_kv, n_tokens) = (at.q.ne[1], at.k.ne[1], at.q.ne[2]);
        let queries = if by_tiles { BLOCK_QUERIES } else { QUERIES };
        let block = (queries / (n_head / n_head_kv)).max(1);
        // A lower bound: tokens with separate page tables only add units.
        let most = n_tokens.div_ceil(block) * n_head_kv / (UNITS_FOR_BLOCKS * nth);
        Sizes {
            dk: at.q.ne[0],
            dv: at.v.ne[0],
            n_head,
            n_head_kv,
            n_tokens,
            n_kv: at.k.ne[2],
            by_tiles,
            block,
            n_blocks: if by_tiles { most.clamp(1, MAX_BLOCKS) } else { 1 },
        }
    }

    /// Returns the number of query heads per KV head.
    fn group(&self) -> usize {
        self.n_head / self.n_head_kv
    }

    /// Returns the maximum number of tokens per unit.
    fn tokens(&self) -> usize {
        self.block * self.n_blocks
    }

    /// Returns the maximum number of queries per unit, for any number of tokens.
    fn max_queries(&self) -> usize {
        self.tokens() * self.group()
    }

    /// Returns the maximum number of queries per block.
    fn together(&self) -> usize {
        self.block * self.group()
    }

    /// Returns the size in floats of the state of `n` queries: maximum score, sum, and weighted values.
    fn state_of(&self, n: usize) -> usize {
        n * (2 + self.dv)
    }

    fn kernel_scratch(&self) -> usize {
        let floats = |d| kernel::scratch(d).max(kernel::tiles::scratch(d));
        floats(self.dk).max(floats(self.dv))
    }

    /// Returns the maximum number of queries of a unit that covers all heads.
    fn queries_of_all(&self) -> usize {
        (self.n_tokens * self.group()).min(FEW_QUERIES) * self.n_head_kv
    }

    /// Returns the size in floats of the largest state of a unit.
    fn state(&self) -> usize {
        self.state_of(self.max_queries().max(self.queries_of_all()))
    }
}

/// Division of a page table into parts.
#[derive(Clone, Copy)]
struct Parts {
    n: usize,
    /// Page table entries per part.
    pages: usize,
}

impl Parts {
    fn new(n_pages: usize, by_tiles: bool) -> Parts {
        let least = if by_tiles { MIN_TILE_PART } else { MIN_PART };
        let mut pages = least.max(n_pages.div_ceil(MAX_PARTS));
        if by_tiles {
            pages = pages.next_multiple_of(MIN_TILE_PART);
        }
        Parts {
            n: n_pages.div_ceil(pages),
            pages,
        }
    }
}

/// Groups of adjacent tokens that share a page table.
struct Tiles<'a> {
    /// First token of each group, and the number of tokens.
    bounds: &'a [u32],
}

impl<'a> Tiles<'a> {
    /// Finds the groups. `bounds` holds one more element than there are tokens.
    fn new(s: &Sizes, visible: &Visible<'_>, bounds: &'a mut [u32]) -> Tiles<'a> {
        let most = s.tokens();
        let mut n = 0;
        for t in 0..s.n_tokens {
            let goes_on = n > 0 && t - (bounds[n - 1] as usize) < most && visible.table(t) == visible.table(t - 1);
            if !goes_on {
                bounds[n] = t as u32;
                n += 1;
            }
        }
        bounds[n] = s.n_tokens as u32;
        Tiles { bounds: &bounds[..=n] }
    }

    fn len(&self) -> usize {
        self.bounds.len() - 1
    }
}

/// Unit of work: several tokens with one page table, and one KV head or all KV heads.
#[derive(Clone, Copy)]
struct AttentionUnit {
    /// Index of the unit's first KV head.
    head: usize,
    heads: usize,
    first: usize,
    end: usize,
}

impl AttentionUnit {
    fn tokens(&self) -> Range<usize> {
        self.first..self.end
    }

    /// Returns the number of queries per KV head, given the number of query heads per KV head.
    fn queries_of_head(&self, group: usize) -> usize {
        self.tokens().len() * group
    }
}

/// Returns the scratch memory of a node.
///
/// Per thread: queries, scores, factors, the kernel's buffers, the states of a unit and of a part, and the
/// bounds of token groups. Shared: the states of all parts, if threads share units.
pub(super) fn scratch_size(graph: &Graph, node: &Tensor, p: &Attention, nth: usize) -> ScratchSize {
    let at = p.operands().map(|i| graph.tensor(node.source(i)));
    // The size for exact computation suffices for every precision.
    let s = Sizes::new(&at, true, nth);
    let own = AttentionScratch::floats(&s);
    let parts = s.n_kv.div_ceil(PAGE).div_ceil(MIN_PART).min(MAX_PARTS);
    let shared = (MANY_UNITS * nth).saturating_mul(parts).saturating_mul(s.state());
    ScratchSize {
        per_thread: own + 2 * s.state() + s.n_tokens + 1,
        shared: if nth == 1 { 0 } else { shared.min(MAX_SHARED) },
    }
}

/// Division of a node's work among threads, the same on every thread.
struct WorkSplit<'a> {
    tiles: Tiles<'a>,
    /// KV heads per unit of work: one or all.
    heads: usize,
    n_units: usize,
    /// Number of units per group of tokens.
    units_of_tile: usize,
    /// Number of parts of the longest page table. For shorter tables, some parts are empty.
    n_parts: usize,
    /// Maximum number of queries per unit.
    n_queries: usize,
    /// Size of a state in floats.
    state: usize,
    /// True if threads share the parts of a unit.
    by_parts: bool,
}

impl<'a> WorkSplit<'a> {
    fn new(task: &Task<'_>, op: &Operands<'_>, bounds: &'a mut [f32]) -> WorkSplit<'a> {
        let (s, nth) = (&op.s, task.share.nth);
        let tiles = Tiles::new(s, &op.visible, bytemuck::cast_slice_mut(bounds));
        let n_tiles = tiles.len();
        let firsts = || tiles.bounds[..n_tiles].iter().map(|&t| t as usize);
        let n_parts = firsts().map(|t| op.parts(t).n).max().unwrap_or(0);
        let lengths = tiles.bounds.windows(2).map(|tile| (tile[1] - tile[0]) as usize);
        let of_head = lengths.max().unwrap_or(0) * s.group();
        let is_plenty = nth == 1 || n_tiles * n_parts >= MANY_PARTS * nth;
        let all_heads = of_head <= FEW_QUERIES && is_plenty && op.sees_alike() && !firsts().any(|t| op.by_tiles(t));
        let heads = if all_heads { s.n_head_kv } else { 1 };
        let (units_of_tile, n_queries) = (s.n_head_kv / heads, heads * of_head);
        let (n_units, state) = (n_tiles * units_of_tile, s.state_of(n_queries));
        let floats = n_units.saturating_mul(n_parts).saturating_mul(state);
        let fits = floats <= task.shared.len().min(MAX_SHARED);
        WorkSplit {
            tiles,
            heads,
            n_units,
            units_of_tile,
            n_parts,
            n_queries,
            state,
            by_parts: nth > 1 && n_parts > 1 && n_units < MANY_UNITS * nth && fits,
        }
    }

    /// Returns unit number `unit`. The last tokens come first: they see the most cells, and long work should
    /// start early.
    fn unit(&self, unit: usize) -> AttentionUnit {
        let tile = self.tiles.len() - 1 - unit / self.units_of_tile;
        AttentionUnit {
            head: unit % self.units_of_tile * self.heads,
            heads: self.heads,
            first: self.tiles.bounds[tile] as usize,
            end: self.tiles.bounds[tile + 1] as usize,
        }
    }

    /// Returns the range of the shared memory that holds the state of a part.
    fn state_at(&self, unit: usize, part: usize) -> Range<usize> {
        let at = (unit * self.n_parts + part) * self.state;
        at..at + self.state
    }
}

pub(super) fn attention(mut task: Task<'_>, p: &Attention) {
    let op = Operands::new(&task, p);
    let s = op.s;
    let mut scratch = std::mem::take(&mut task.scratch);
    let cut = WorkSplit::new(&task, &op, take(&mut scratch, s.n_tokens + 1));
    let mut workspace = AttentionScratch::new(&mut scratch, &s);
    if cut.by_parts {
        return attend_to_parts(&task, &op, &cut, &mut workspace);
    }
    let mut whole = State::new(take(&mut scratch, cut.state), cut.n_queries);
    let of_part = take(&mut scratch, cut.state);
    while let Some(unit) = task.queue.take(cut.n_units) {
        let unit = cut.unit(unit);
        whole.clear();
        op.fetch_first(&unit, 0);
        op.load_queries(&unit, &mut workspace);
        for part in 0..op.parts(unit.first).n {
            let next = op.first_page(unit.first, part + 1).map(|page| (unit.head, page));
            op.attend(
                &unit,
                part,
                next,
                &mut State::new(of_part, cut.n_queries),
                &mut workspace,
            );
            whole.merge(of_part, cut.n_queries, 0);
        }
        op.finish(&unit, &mut whole, &task);
    }
}

/// Computes parts and stores their states in shared memory.
fn attend_to_parts(task: &Task<'_>, op: &Operands<'_>, cut: &WorkSplit<'_>, workspace: &mut AttentionScratch<'_>) {
    while let Some(piece) = task.queue.take(cut.n_units * cut.n_parts) {
        let (part, at) = (piece / cut.n_units, piece % cut.n_units);
        let unit = cut.unit(at);
        // The part that this thread probably takes next.
        let after = piece + task.share.nth;
        let next = op.first_page(unit.first, after / cut.n_units);
        let next = next.map(|page| (cut.unit(after % cut.n_units).head, page));
        // SAFETY: the queue gives each part to one thread, and no thread reads the states in this phase.
        let shared = unsafe { task.shared.write(cut.state_at(at, part)) };
        op.fetch_first(&unit, part);
        op.load_queries(&unit, workspace);
        op.attend(&unit, part, next, &mut State::new(shared, cut.n_queries), workspace);
    }
}

/// Merges the results of parts, head by head. Runs in a phase after [`attention`] and does nothing if each
/// unit was computed by one thread.
pub(super) fn merge(mut task: Task<'_>, p: &Attention) {
    let op = Operands::new(&task, p);
    let s = op.s;
    let mut scratch = std::mem::take(&mut task.scratch);
    let cut = WorkSplit::new(&task, &op, take(&mut scratch, s.n_tokens + 1));
    if !cut.by_parts {
        return;
    }
    let floats = take(&mut scratch, cut.state);
    while let Some(piece) = task.queue.take(cut.n_units * cut.heads) {
        let (at, head) = (piece / cut.heads, piece % cut.heads);
        let unit = cut.unit(at);
        let n = unit.queries_of_head(s.group());
        let mut whole = State::new(&mut floats[..s.state_of(n)], n);
        whole.clear();
        for part in 0..cut.n_parts {
            // SAFETY: the states were written in an earlier phase and are read-only in this phase.
            let of_part = unsafe { task.shared.read(cut.state_at(at, part)) };
            whole.merge(of_part, cut.n_queries, head * n);
        }
        let unit = AttentionUnit {
            head: unit.head + head,
            heads: 1,
            ..unit
        };
        op.finish(&unit, &mut whole, &task);
    }
}

/// Scratch memory of a thread.
struct AttentionScratch<'a> {
    /// Scaled queries, contiguous.
    queries: &'a mut [f32],
    /// Scores of a block of queries with one page, [`PAGE`] per query.
    scores: &'a mut [f32],
    /// Factor per query of a block for the sums of earlier pages.
    factors: &'a mut [f32],
    /// Scratch buffer of the attention kernel.
    kernel: &'a mut [f32],
    tiles: TileScratch<'a>,
}

impl<'a> AttentionScratch<'a> {
    fn new(scratch: &mut &'a mut [f32], s: &Sizes) -> AttentionScratch<'a> {
        let [queries, scores, factors, kernel] = Self::sizes(s).map(|floats| take(scratch, floats));
        AttentionScratch {
            queries,
            scores,
            factors,
            kernel,
            tiles: TileScratch::new(scratch, s),
        }
    }

    /// Returns the total size in floats.
    fn floats(s: &Sizes) -> usize {
        Self::sizes(s).iter().sum::<usize>() + TileScratch::floats(s)
    }

    /// Returns the sizes in floats of queries, scores, factors, and the kernel's buffer.
    fn sizes(s: &Sizes) -> [usize; 4] {
        let (queries, together) = (s.max_queries(), s.together());
        let all = s.queries_of_all();
        let together = together.max(all);
        [queries.max(all) * s.dk, together * PAGE, together, s.kernel_scratch()]
    }
}

/// The operands of an attention node.
struct Operands<'a> {
    p: &'a Attention,
    s: Sizes,
    q: Source<'a>,
    k: Source<'a>,
    v: Source<'a>,
    visible: Visible<'a>,
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
    fn new(task: &Task<'a>, p: &'a Attention) -> Operands<'a> {
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
    fn sees_alike(&self) -> bool {
        self.selection.is_none_or(|selection| selection.lists == 1)
    }

    /// Returns true if token `t` and its neighbors with the same page table have enough queries to amortize
    /// packing keys and values. All units of a page table get the same result, whatever their length.
    fn by_tiles(&self, t: usize) -> bool {
        let enough = TILE_QUERIES.div_ceil(self.s.group());
        let shares_table = |other: &usize| self.visible.table(*other) == self.visible.table(t);
        let before = || (0..t).rev().take_while(shares_table).take(enough).count();
        let after = || (t..self.s.n_tokens).take_while(shares_table).take(enough).count();
        self.s.by_tiles && before() + after() >= enough
    }

    /// Returns the division of token `t`'s page table into parts.
    fn parts(&self, t: usize) -> Parts {
        Parts::new(self.visible.entries(t).len(), self.by_tiles(t))
    }

    /// Returns the entries of token `t`'s page table that belong to a part.
    fn entries(&self, t: usize, part: usize) -> Range<usize> {
        let entries = self.visible.entries(t);
        let n_pages = self.parts(t).pages;
        let first = entries.start.saturating_add(part * n_pages).min(entries.end);
        first..entries.end.min(first.saturating_add(n_pages))
    }

    /// Prefetches the first keys and values of a part while the queries are loaded.
    fn fetch_first(&self, unit: &AttentionUnit, part: usize) {
        if let Some(page) = self.first_page(unit.first, part).filter(|page| page.len > 0) {
            for source in [&self.k, &self.v] {
                cache_rows(source, unit.head, unit.heads, &page, None).prefetch_first();
            }
        }
    }

    /// Returns the first page of a part, or `None` if the part is empty.
    fn first_page(&self, t: usize, part: usize) -> Option<Page> {
        self.entries(t, part).next().map(|entry| self.visible.page(entry))
    }

    /// Computes attention of the unit's loaded queries over one part of the page table. `next` is the KV head
    /// and the page that will be read afterwards.
    fn attend(
        &self,
        unit: &AttentionUnit,
        part: usize,
        next: Option<(usize, Page)>,
        state: &mut State<'_>,
        workspace: &mut AttentionScratch<'_>,
    ) {
        state.clear();
        let tokens = unit.tokens();
        let of_part = self.entries(unit.first, part);
        if of_part.is_empty() {
            return;
        }
        if self.by_tiles(unit.first) {
            return self.attend_by_tiles(unit, of_part, next, state, workspace);
        }
        for entry in of_part.clone() {
            let page = self.visible.page(entry);
            let mut seen = [0u64; QUERIES];
            let seen = &mut seen[..tokens.len()];
            let any = self.look(unit, &page, seen.iter_mut());
            if any != 0 {
                let of_head = (entry + 1 < of_part.end).then(|| (unit.head, self.visible.page(entry + 1)));
                self.attend_to_page(unit, &page, of_head.or(next), seen, state, workspace);
            }
        }
    }

    /// Stores a bit mask of the cells of a page that each token of the unit sees, and returns the union of
    /// the masks.
    fn look<'s>(&self, unit: &AttentionUnit, page: &Page, seen: impl Iterator<Item = &'s mut u64>) -> u64 {
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
    fn attend_to_page(
        &self,
        unit: &AttentionUnit,
        page: &Page,
        next: Option<(usize, Page)>,
        seen: &[u64],
        state: &mut State<'_>,
        workspace: &mut AttentionScratch<'_>,
    ) {
        #[cfg(test)]
        tests::N_SCORED.set(tests::N_SCORED.get() + unit.heads);
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
                let at = head * of_head..(head + 1) * of_head;
                let scores = &mut scores[at.start * PAGE..at.end * PAGE];
                self.adjust(unit, unit.head + head, first, page, scores.chunks_exact_mut(PAGE));
                kernel::softmax_step(
                    scores,
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
    fn load_queries(&self, unit: &AttentionUnit, workspace: &mut AttentionScratch<'_>) {
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
            Window::Chunked(n) => (pos / size(n) * size(n), i64::MAX),
            Window::Symmetric(n) => (pos.saturating_sub(size(n / 2)), pos.saturating_add(size(n / 2))),
        };
        let to = if self.p.causal { to.min(pos) } else { to };
        let limit = i64::from(i32::MAX);
        (from.clamp(0, limit) as i32, to.clamp(-1, limit) as i32)
    }

    /// Applies softcap, ALiBi, and relative position biases to the raw scores of a page.
    ///
    /// `scores` yields the rows of the queries of KV head `head`, starting at query `first`.
    fn adjust<'s>(
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
    fn finish(&self, unit: &AttentionUnit, state: &mut State<'_>, task: &Task<'_>) {
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
fn cache_rows<'a>(
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
        next: next.filter(|(_, page)| page.len > 0).map_or(&[], rows),
    }
}

#[cfg(test)]
mod tests;
