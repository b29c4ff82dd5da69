//! Attention by online softmax: keys and values are read page by page, and of the scores only those of one page exist. Many tokens of one sequence take some pages at a time, where the CPU has kernels for that.
//!
//! A unit of work is some tokens with one page table and the query heads that share one key head, so that what is read of a cache serves as
//! many queries as possible. Where queries are few reading the cache takes the time, and the heads of a cell lie side by side in memory: a unit then is of all heads, if
//! there is enough to share among threads. The pages of a unit are cut into parts, and the results of parts are merged in order. The cut follows from the
//! page table alone, so that results do not depend on who computes which part: where units are many each is computed by one thread, and
//! where they are few (one token) threads share parts.

mod biases;
mod state;
mod tiles;

use std::ops::Range;

use kernels::attention::tiles::TILE_QUERIES;
use kernels::attention::{self as kernel, CacheRows, FEW_QUERIES};
use kernels::{FAST_COLUMNS, rows};

use self::biases::{Biases, alibi_slope};
use self::state::State;
use self::tiles::TileRoom;
use super::visible::{Page, Span, Visible};
use super::{Need, Task};
use crate::backend::cpu::scratch::take;
use crate::backend::cpu::view::Source;
use crate::graph::{Attention, AttentionOperands, Graph, PAGE, Tensor, Window};

/// Queries (tokens times heads) that a unit has at most, unless more heads share one key head.
const QUERIES: usize = 48;

/// Queries of a block where a unit for tiles multiplies them: whole tiles of them, also with three heads to a key head.
const BLOCK_QUERIES: usize = 96;

/// As many times that the queries of a unit may be, since keys and values have to be prepared for tiles, once for all of them.
const MAX_BLOCKS: usize = 4;

/// Most tokens of a unit.
const MAX_UNIT: usize = MAX_BLOCKS * BLOCK_QUERIES;

/// Units per thread that have to be left then.
const UNITS_FOR_BLOCKS: usize = 6;

/// Parts of all heads per thread from which on a unit is of all heads.
const MANY_PARTS: usize = 2;

/// Least pages of a part.
const MIN_PART: usize = 2;

/// The same where a unit for tiles multiplies: a part takes little time. Parts are multiples of it.
const MIN_TILE_PART: usize = tiles::MOST_PAGES;

/// Most parts of a unit.
const MAX_PARTS: usize = 32;

/// Units per thread from which on each unit is computed by one thread.
const MANY_UNITS: usize = 2;

/// Floats that the results of parts may take up; where they would take more, each unit is computed by one thread.
const MAX_SHARED: usize = 1 << 22;

const _: () = assert!(PAGE == kernel::KEYS);

/// Sizes of the operands.
#[derive(Clone, Copy)]
struct Sizes {
    dk: usize,
    dv: usize,
    n_head: usize,
    n_head_kv: usize,
    n_tokens: usize,
    n_kv: usize,
    /// Tokens may take some pages at a time: see [`Operands::by_tiles`].
    by_tiles: bool,
    /// Tokens that are computed together, unless there is none.
    block: usize,
    /// Blocks that a unit has at most.
    n_blocks: usize,
}

impl Sizes {
    /// Kernels for some pages at a time, if the CPU has them, are for batches of as many tokens as products take fewer bits for (`any_order`).
    fn new(at: &AttentionOperands<&Tensor>, any_order: bool, nth: usize) -> Sizes {
        let by_tiles = any_order && at.q.ne[2] >= FAST_COLUMNS && kernel::tiles::has_tiles();
        let (n_head, n_head_kv, n_tokens) = (at.q.ne[1], at.k.ne[1], at.q.ne[2]);
        let queries = if by_tiles { BLOCK_QUERIES } else { QUERIES };
        let block = (queries / (n_head / n_head_kv)).max(1);
        // Tokens with page tables of their own only make more units.
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

    /// Query heads that share a key head.
    fn group(&self) -> usize {
        self.n_head / self.n_head_kv
    }

    /// Most tokens of a unit.
    fn tokens(&self) -> usize {
        self.block * self.n_blocks
    }

    /// Most queries of a unit, whatever the number of tokens.
    fn max_queries(&self) -> usize {
        self.tokens() * self.group()
    }

    /// Most queries that are computed together.
    fn together(&self) -> usize {
        self.block * self.group()
    }

    /// Floats of a state of `n` queries: largest score, sum and weighted values of each.
    fn state_of(&self, n: usize) -> usize {
        n * (2 + self.dv)
    }

    fn kernel_scratch(&self) -> usize {
        let floats = |d| kernel::scratch(d).max(kernel::tiles::scratch(d));
        floats(self.dk).max(floats(self.dv))
    }

    /// Most queries of a unit of all heads.
    fn queries_of_all(&self) -> usize {
        (self.n_tokens * self.group()).min(FEW_QUERIES) * self.n_head_kv
    }

    /// Floats of the largest state of a unit.
    fn state(&self) -> usize {
        self.state_of(self.max_queries().max(self.queries_of_all()))
    }
}

/// How the pages of a page table are cut into parts.
#[derive(Clone, Copy)]
struct Parts {
    n: usize,
    /// Pages of a part.
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

/// Tokens that are side by side and share a page table.
struct Tiles<'a> {
    /// First token of each, and the number of tokens.
    bounds: &'a [u32],
}

impl<'a> Tiles<'a> {
    /// Finds the tiles; `bounds` has room for the bounds of as many as there are tokens.
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

/// Some tokens with one page table, and a key head or all of them.
#[derive(Clone, Copy)]
struct Unit {
    /// The first key head.
    head: usize,
    heads: usize,
    first: usize,
    end: usize,
}

impl Unit {
    fn tokens(&self) -> Range<usize> {
        self.first..self.end
    }

    /// Queries of a key head, for as many query heads to each.
    fn queries_of_head(&self, group: usize) -> usize {
        self.tokens().len() * group
    }
}

/// A thread's own: queries, scores, factors, the kernel's scratch, the states of a unit and of a part, and the bounds of tiles.
/// Shared: the states of all parts, if threads share units.
pub(super) fn need(graph: &Graph, node: &Tensor, p: &Attention, nth: usize) -> Need {
    let at = p.operands().map(|i| graph.tensor(node.source(i)));
    // Enough for any precision.
    let s = Sizes::new(&at, true, nth);
    let own = Room::floats(&s);
    let parts = s.n_kv.div_ceil(PAGE).div_ceil(MIN_PART).min(MAX_PARTS);
    let shared = (MANY_UNITS * nth).saturating_mul(parts).saturating_mul(s.state());
    Need {
        per_thread: own + 2 * s.state() + s.n_tokens + 1,
        shared: if nth == 1 { 0 } else { shared.min(MAX_SHARED) },
    }
}

/// How threads share the work on a node, as all of them find it.
struct Cut<'a> {
    tiles: Tiles<'a>,
    /// Key heads of a unit: one or all.
    heads: usize,
    n_units: usize,
    /// Units of the same tokens.
    units_of_tile: usize,
    /// Parts of the longest page table: shorter ones leave some empty.
    n_parts: usize,
    /// Most queries of a unit.
    n_queries: usize,
    /// Floats of a state.
    state: usize,
    /// Threads share the parts of a unit.
    by_parts: bool,
}

impl<'a> Cut<'a> {
    fn new(task: &Task<'_>, op: &Operands<'_>, bounds: &'a mut [f32]) -> Cut<'a> {
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
        Cut {
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

    /// The last tokens come first: later ones see more, and what takes longest is begun first.
    fn unit(&self, unit: usize) -> Unit {
        let tile = self.tiles.len() - 1 - unit / self.units_of_tile;
        Unit {
            head: unit % self.units_of_tile * self.heads,
            heads: self.heads,
            first: self.tiles.bounds[tile] as usize,
            end: self.tiles.bounds[tile + 1] as usize,
        }
    }

    /// Where the state of a part lies in the memory that threads share.
    fn state_at(&self, unit: usize, part: usize) -> Range<usize> {
        let at = (unit * self.n_parts + part) * self.state;
        at..at + self.state
    }
}

pub(super) fn attention(mut task: Task<'_>, p: &Attention) {
    let op = Operands::new(&task, p);
    let s = op.s;
    let mut scratch = std::mem::take(&mut task.scratch);
    let cut = Cut::new(&task, &op, take(&mut scratch, s.n_tokens + 1));
    let mut room = Room::new(&mut scratch, &s);
    if cut.by_parts {
        return attend_to_parts(&task, &op, &cut, &mut room);
    }
    let mut whole = State::new(take(&mut scratch, cut.state), cut.n_queries);
    let of_part = take(&mut scratch, cut.state);
    while let Some(unit) = task.queue.take(cut.n_units) {
        let unit = cut.unit(unit);
        whole.clear();
        op.fetch_first(&unit, 0);
        op.load_queries(&unit, &mut room);
        for part in 0..op.parts(unit.first).n {
            let next = op.first_page(unit.first, part + 1).map(|page| (unit.head, page));
            op.attend(&unit, part, next, &mut State::new(of_part, cut.n_queries), &mut room);
            whole.merge(of_part, cut.n_queries, 0);
        }
        op.finish(&unit, &mut whole, &task);
    }
}

/// The results of parts to the memory that threads share.
fn attend_to_parts(task: &Task<'_>, op: &Operands<'_>, cut: &Cut<'_>, room: &mut Room<'_>) {
    while let Some(piece) = task.queue.take(cut.n_units * cut.n_parts) {
        let (part, at) = (piece / cut.n_units, piece % cut.n_units);
        let unit = cut.unit(at);
        // What this thread most likely takes next.
        let after = piece + task.share.nth;
        let next = op.first_page(unit.first, after / cut.n_units);
        let next = next.map(|page| (cut.unit(after % cut.n_units).head, page));
        // SAFETY: no other thread takes this piece, and nobody reads it in this phase.
        let shared = unsafe { task.shared.write(cut.state_at(at, part)) };
        op.fetch_first(&unit, part);
        op.load_queries(&unit, room);
        op.attend(&unit, part, next, &mut State::new(shared, cut.n_queries), room);
    }
}

/// Merges the results of parts, head by head, in a phase after [`attention`], if threads shared units.
pub(super) fn merge(mut task: Task<'_>, p: &Attention) {
    let op = Operands::new(&task, p);
    let s = op.s;
    let mut scratch = std::mem::take(&mut task.scratch);
    let cut = Cut::new(&task, &op, take(&mut scratch, s.n_tokens + 1));
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
            // SAFETY: the states were written in an earlier phase, and are not written again in this one.
            let of_part = unsafe { task.shared.read(cut.state_at(at, part)) };
            whole.merge(of_part, cut.n_queries, head * n);
        }
        let unit = Unit {
            head: unit.head + head,
            heads: 1,
            ..unit
        };
        op.finish(&unit, &mut whole, &task);
    }
}

/// A thread's scratch memory.
struct Room<'a> {
    /// Queries times the scale, one after another.
    queries: &'a mut [f32],
    /// Scores of a page and a block of queries, [`PAGE`] to each.
    scores: &'a mut [f32],
    /// For each query of a block the factor for what was summed up before a page.
    factors: &'a mut [f32],
    /// The kernel's own.
    kernel: &'a mut [f32],
    tiles: TileRoom<'a>,
}

impl<'a> Room<'a> {
    fn new(scratch: &mut &'a mut [f32], s: &Sizes) -> Room<'a> {
        let [queries, scores, factors, kernel] = Self::sizes(s).map(|floats| take(scratch, floats));
        Room {
            queries,
            scores,
            factors,
            kernel,
            tiles: TileRoom::new(scratch, s),
        }
    }

    /// Floats that it takes.
    fn floats(s: &Sizes) -> usize {
        Self::sizes(s).iter().sum::<usize>() + TileRoom::floats(s)
    }

    /// Floats of queries, scores, factors, and of the kernel's own.
    fn sizes(s: &Sizes) -> [usize; 4] {
        let (queries, together) = (s.max_queries(), s.together());
        let all = s.queries_of_all();
        let together = together.max(all);
        [queries.max(all) * s.dk, together * PAGE, together, s.kernel_scratch()]
    }
}

/// The operands.
struct Operands<'a> {
    p: &'a Attention,
    s: Sizes,
    q: Source<'a>,
    k: Source<'a>,
    v: Source<'a>,
    visible: Visible<'a>,
    sinks: Option<Source<'a>>,
    biases: Option<Biases<'a>>,
    /// For each token, and key head if they differ, the cells that it may see, as many for all.
    selection: Option<Selection<'a>>,
}

/// Lists of cells.
#[derive(Clone, Copy)]
struct Selection<'a> {
    cells: &'a [i32],
    /// Cells of a list.
    n: usize,
    /// Lists of a token: one, or one for each key head.
    lists: usize,
}

impl<'a> Operands<'a> {
    fn new(task: &Task<'a>, p: &'a Attention) -> Operands<'a> {
        let at = p.operands().map(|i| task.source(i));
        let s = Sizes::new(&at.map(|source| source.tensor), task.planned.any_order, task.share.nth);
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

    /// True if all heads see the same cells.
    fn sees_alike(&self) -> bool {
        self.selection.is_none_or(|selection| selection.lists == 1)
    }

    /// Whether token `t` and those beside it with its page table have enough queries to prepare keys and values for. Units of one table, however long they
    /// are, find the same.
    fn by_tiles(&self, t: usize) -> bool {
        let enough = TILE_QUERIES.div_ceil(self.s.group());
        let shares_table = |other: &usize| self.visible.table(*other) == self.visible.table(t);
        let before = || (0..t).rev().take_while(shares_table).take(enough).count();
        let after = || (t..self.s.n_tokens).take_while(shares_table).take(enough).count();
        self.s.by_tiles && before() + after() >= enough
    }

    /// How the page table of a token is cut.
    fn parts(&self, t: usize) -> Parts {
        Parts::new(self.visible.entries(t).len(), self.by_tiles(t))
    }

    /// The entries of a part of a token's page table.
    fn entries(&self, t: usize, part: usize) -> Range<usize> {
        let entries = self.visible.entries(t);
        let n_pages = self.parts(t).pages;
        let first = entries.start.saturating_add(part * n_pages).min(entries.end);
        first..entries.end.min(first.saturating_add(n_pages))
    }

    /// Fetches the keys and values that a part begins with, while queries are loaded.
    fn fetch_first(&self, unit: &Unit, part: usize) {
        if let Some(page) = self.first_page(unit.first, part).filter(|page| page.len > 0) {
            for source in [&self.k, &self.v] {
                cache_rows(source, unit.head, unit.heads, &page, None).prefetch_first();
            }
        }
    }

    /// The first page of a part, if there is any.
    fn first_page(&self, t: usize, part: usize) -> Option<Page> {
        self.entries(t, part).next().map(|entry| self.visible.page(entry))
    }

    /// Attends the unit's queries, which were loaded, to one part of their page table. `next` are the key head and the page that are read after it.
    fn attend(
        &self,
        unit: &Unit,
        part: usize,
        next: Option<(usize, Page)>,
        state: &mut State<'_>,
        room: &mut Room<'_>,
    ) {
        state.clear();
        let tokens = unit.tokens();
        let of_part = self.entries(unit.first, part);
        if of_part.is_empty() {
            return;
        }
        if self.by_tiles(unit.first) {
            return self.attend_by_tiles(unit, of_part, next, state, room);
        }
        for entry in of_part.clone() {
            let page = self.visible.page(entry);
            let mut seen = [0u64; QUERIES];
            let seen = &mut seen[..tokens.len()];
            let any = self.look(unit, &page, seen.iter_mut());
            if any != 0 {
                let of_head = (entry + 1 < of_part.end).then(|| (unit.head, self.visible.page(entry + 1)));
                self.attend_to_page(unit, &page, of_head.or(next), seen, state, room);
            }
        }
    }

    /// Sets the cells of a page that each token of the unit sees, by bits. Returns those that any of them sees.
    fn look<'s>(&self, unit: &Unit, page: &Page, seen: impl Iterator<Item = &'s mut u64>) -> u64 {
        let span = self.visible.span(page);
        seen.zip(unit.tokens()).fold(0, |any, (seen, t)| {
            *seen = self.seen(t, page, &span);
            if *seen != 0 {
                *seen &= self.selected(unit.head, t, page.first);
            }
            any | *seen
        })
    }

    /// Attends the unit's queries to the cells of a page that their tokens have `seen`; `next` are the key head and the page after it.
    fn attend_to_page(
        &self,
        unit: &Unit,
        page: &Page,
        next: Option<(usize, Page)>,
        seen: &[u64],
        state: &mut State<'_>,
        room: &mut Room<'_>,
    ) {
        #[cfg(test)]
        tests::N_SCORED.set(tests::N_SCORED.get() + unit.heads);
        let s = &self.s;
        let of_heads = |source| cache_rows(source, unit.head, unit.heads, page, next);
        let (keys, values) = (of_heads(&self.k), of_heads(&self.v));
        // What is not seen is not touched: whatever other sequences left there, not even infinities get out.
        for (i, seen) in seen.chunks(s.block).enumerate() {
            let wanted = seen.iter().fold(0, |any, seen| any | seen);
            if wanted == 0 {
                continue;
            }
            // There are several blocks only of single heads.
            let (first, of_head) = (i * s.together(), seen.len() * s.group());
            let queries = first..first + unit.heads * of_head;
            let n = queries.len();
            let (scores, factors) = (&mut room.scores[..n * PAGE], &mut room.factors[..n]);
            let of_block = &room.queries[queries.start * s.dk..queries.end * s.dk];
            kernel::scores(&keys, wanted, of_block, scores, room.kernel);
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
            kernel::add_values(&values, seen, scores, factors, sums, room.kernel);
        }
    }

    /// The unit's queries, key head by key head and token by token, times the scale.
    fn load_queries(&self, unit: &Unit, room: &mut Room<'_>) {
        let (group, of_head) = (self.s.group(), unit.queries_of_head(self.s.group()));
        let out = &mut room.queries[..unit.heads * of_head * self.s.dk];
        for (i, out) in out.chunks_exact_mut(self.s.dk).enumerate() {
            let (head, i) = (unit.head + i / of_head, i % of_head);
            self.q
                .copy_row([head * group + i % group, unit.first + i / group, 0], out);
            rows::scale_in_place(out, self.p.scale, 0.0);
        }
        if self.by_tiles(unit.first) {
            kernel::tiles::put_queries(out, self.s.dk, room.tiles.queries);
        }
    }

    /// Which cells of a page of its table token `t` sees, by bits; `span` is of the page's positions.
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
        // What of these stands for single tokens.
        let n_single = self.p.compressed_from.map_or(PAGE, |c| c.saturating_sub(page.first));
        let positions = &self.visible.cell_pos[page.first..page.first + page.len];
        let in_range = positions.iter().enumerate().fold(0, |bits, (i, &pos)| {
            let from = if i < n_single { from } else { 0 };
            bits | u64::from((pos >= from) & (pos <= to)) << i
        });
        in_range & page.mask
    }

    /// Which of the 64 cells from `first` on are selected for token `t` and key head `head`, by bits.
    fn selected(&self, head: usize, t: usize, first: usize) -> u64 {
        let Some(Selection { cells, n, lists }) = self.selection else {
            return u64::MAX;
        };
        // Those that stand for single tokens are not selected among.
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

    /// The causal rule and the windows, as a range of positions; the first is not negative.
    fn range(&self, t: usize) -> (i32, i32) {
        let pos = i64::from(self.visible.pos[t]);
        let size = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        let (from, to) = match self.p.window {
            Window::None | Window::Compressed(_) => (0, i64::MAX),
            Window::Standard(n) => (pos.saturating_sub(size(n)).saturating_add(1), i64::MAX),
            Window::Chunked(n) => (pos / size(n) * size(n), i64::MAX),
            Window::Symmetric(n) => (pos.saturating_sub(size(n / 2)), pos.saturating_add(size(n / 2))),
        };
        let to = if self.p.causal { to.min(pos) } else { to };
        let limit = i64::from(i32::MAX);
        (from.clamp(0, limit) as i32, to.clamp(-1, limit) as i32)
    }

    /// Turns products with a page into scores: soft cap, ALiBi, biases by relative position. `scores` are rows of the queries of one of the unit's key heads from query `first` on.
    fn adjust<'s>(
        &self,
        unit: &Unit,
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

    /// [`Operands::adjust`] for one query: scores of the cells from `first` on.
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

    /// Divides by the sums, sinks included, and writes the results.
    fn finish(&self, unit: &Unit, state: &mut State<'_>, task: &Task<'_>) {
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
            // SAFETY: a head and token belong to one unit, and a unit is finished once, by one thread.
            unsafe {
                match task.planned.stores {
                    Some(form) => form.store_part(t, head * s.dv, values, &task.target),
                    None => task.target.row(head + s.n_head * t).copy_from_slice(values),
                }
            }
        }
    }
}

/// The keys or values of a page, of some heads from `head` on; `next` are the head and the page that are read after it.
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
