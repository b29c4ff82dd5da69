//! Attention by online softmax: keys and values are read page by page, and of the scores only those of one page exist. A unit for tiles takes some pages at a time. Without one, queries of prompts are lanes.
//!
//! A unit of work is some tokens with one page table and the query heads that share one key head, so that what is read of a cache serves as
//! many queries as possible. The pages of a unit are cut into parts, and the results of parts are merged in order. The cut follows from the
//! page table alone, so that results do not depend on who computes which part: where units are many each is computed by one thread, and
//! where they are few (one token) threads share parts. The heads of a page lie side by side in memory, so a thread that takes a part takes it for all heads, if
//! parts are plenty.

mod prompt;
mod tiles;

use std::ops::Range;

use kernels::attention::prompt::Prompt;
use kernels::attention::{self as kernel, CacheRows};
use kernels::{FAST_COLUMNS, rows};

use self::tiles::TileRoom;
use super::visible::{Page, Span, Visible};
use super::{Need, Task};
use crate::backend::cpu::scratch::take;
use crate::backend::cpu::view::Source;
use crate::graph::{Attention, AttentionOperands, Buckets, Graph, PAGE, Tensor, Window};

/// Queries (tokens times heads) that a unit has at most, unless more heads share one key head.
const QUERIES: usize = 48;

/// Queries of a block of a prompt that is computed by tiles or in lanes: whole tiles of them, also with three heads to a key head.
const BLOCK_QUERIES: usize = 96;

/// As many times that the queries of a unit may be, since keys and values have to be prepared for tiles, once for all of them.
const MAX_BLOCKS: usize = 4;

/// Most tokens of a unit.
const MAX_UNIT: usize = MAX_BLOCKS * BLOCK_QUERIES;

/// Units per thread that have to be left then.
const UNITS_FOR_BLOCKS: usize = 6;

/// Queries that a head has at most where a thread takes a part for all heads: for few queries memory is what takes time.
const FEW_QUERIES: usize = 16;

/// Pieces of work per thread from which on a piece is a part of all heads.
const MANY_PIECES: usize = 4;

/// Least pages of a part.
const MIN_PART: usize = 2;

/// The same of prompts by tiles or in lanes: a part takes little time, or is for many queries. Parts are multiples of it.
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
    /// A unit for tiles multiplies.
    by_tiles: bool,
    /// Queries are lanes of registers.
    in_lanes: bool,
    /// Tokens that are computed together, unless there is none.
    block: usize,
    /// Blocks that a unit has at most.
    n_blocks: usize,
}

impl Sizes {
    /// A unit for tiles, if the CPU has one, is for batches of as many tokens as products take fewer bits for (`any_order`). If it has none, queries of those are lanes, but
    /// where scores depend on positions: what is rare has but one form.
    fn new(at: &AttentionOperands<&Tensor>, p: &Attention, any_order: bool, nth: usize) -> Sizes {
        let is_prompt = any_order && at.q.ne[2] >= FAST_COLUMNS;
        let by_tiles = is_prompt && kernel::tiles::has_tiles();
        let in_lanes = is_prompt && !by_tiles && p.max_bias == 0.0 && at.biases.is_none();
        let (n_head, n_head_kv, n_tokens) = (at.q.ne[1], at.k.ne[1], at.q.ne[2]);
        let queries = if by_tiles || in_lanes { BLOCK_QUERIES } else { QUERIES };
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
            in_lanes,
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

    /// Floats of a unit's state.
    fn state(&self) -> usize {
        self.state_of(self.max_queries())
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
    fn new(n_pages: usize, s: &Sizes) -> Parts {
        let least = if s.by_tiles || s.in_lanes { MIN_TILE_PART } else { 1 };
        let pages = MIN_PART.max(n_pages.div_ceil(MAX_PARTS)).next_multiple_of(least);
        Parts {
            n: n_pages.div_ceil(pages),
            pages,
        }
    }
}

/// Tokens that are side by side and share a page table: each with every key head is a unit.
struct Tiles<'a> {
    /// First token of each, and the number of tokens.
    bounds: &'a [u32],
    n_head_kv: usize,
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
        Tiles {
            bounds: &bounds[..=n],
            n_head_kv: s.n_head_kv,
        }
    }

    fn len(&self) -> usize {
        self.bounds.len() - 1
    }

    fn n_units(&self) -> usize {
        self.len() * self.n_head_kv
    }

    /// The last ones come first: later tokens see more, and what takes longest is begun first.
    fn unit(&self, unit: usize) -> Unit {
        let tile = self.len() - 1 - unit / self.n_head_kv;
        Unit {
            head: unit % self.n_head_kv,
            first: self.bounds[tile] as usize,
            end: self.bounds[tile + 1] as usize,
        }
    }
}

/// Some tokens with one page table, and a key head.
#[derive(Clone, Copy)]
struct Unit {
    head: usize,
    first: usize,
    end: usize,
}

impl Unit {
    fn tokens(&self) -> Range<usize> {
        self.first..self.end
    }
}

/// A thread's own: queries, scores, factors, the kernel's scratch, the states of a unit and of a part, and the bounds of tiles.
/// Shared: the states of all parts, if threads share units.
pub(super) fn need(graph: &Graph, node: &Tensor, p: &Attention, nth: usize) -> Need {
    let at = p.operands().map(|i| graph.tensor(node.source(i)));
    // Enough for any precision.
    let s = Sizes::new(&at, p, true, nth);
    let n = s.max_queries();
    let own = n * s.dk + s.together() * (PAGE + 1) + TileRoom::floats(&s) + prompt::floats(&s) + s.kernel_scratch();
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
    n_units: usize,
    /// Parts of the longest page table: shorter ones leave some empty.
    n_parts: usize,
    /// Most queries of a unit.
    n_queries: usize,
    /// Floats of a state.
    state: usize,
    /// Key heads whose part is one piece of work; `None` if each unit is computed by one thread.
    heads: Option<usize>,
}

impl<'a> Cut<'a> {
    fn new(task: &Task<'_>, op: &Operands<'_>, bounds: &'a mut [f32]) -> Cut<'a> {
        let (s, nth) = (&op.s, task.share.nth);
        let tiles = Tiles::new(s, &op.visible, bytemuck::cast_slice_mut(bounds));
        let (n_tiles, n_units) = (tiles.len(), tiles.n_units());
        let tables = tiles.bounds[..n_tiles].iter();
        let n_parts = tables.map(|&t| op.parts(t as usize).n).max().unwrap_or(0);
        let lengths = tiles.bounds.windows(2).map(|tile| (tile[1] - tile[0]) as usize);
        let n_queries = lengths.max().unwrap_or(0) * s.group();
        let state = s.state_of(n_queries);
        let floats = n_units.saturating_mul(n_parts).saturating_mul(state);
        let all_heads = n_queries <= FEW_QUERIES && n_tiles * n_parts >= MANY_PIECES * nth;
        let by_parts = n_parts > 1 && (all_heads || n_units < MANY_UNITS * nth);
        let fits = floats <= task.shared.len().min(MAX_SHARED);
        Cut {
            tiles,
            n_units,
            n_parts,
            n_queries,
            state,
            heads: (nth > 1 && by_parts && fits).then_some(if all_heads { s.n_head_kv } else { 1 }),
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
    if let Some(heads) = cut.heads {
        return attend_to_parts(&task, &op, &cut, heads, &mut room);
    }
    let mut whole = State::new(take(&mut scratch, cut.state), cut.n_queries);
    let of_part = take(&mut scratch, cut.state);
    while let Some(unit) = task.queue.take(cut.n_units) {
        let unit = cut.tiles.unit(unit);
        whole.clear();
        op.load_queries(&unit, &mut room);
        for part in 0..op.parts(unit.first).n {
            let next = op.first_page(unit.first, part + 1).map(|page| (unit.head, page));
            op.attend(&unit, part, next, &mut State::new(of_part, cut.n_queries), &mut room);
            whole.merge(of_part);
        }
        op.finish(&unit, &mut whole, &task);
    }
}

/// The results of parts, each for as many `heads`, to the memory that threads share.
fn attend_to_parts(task: &Task<'_>, op: &Operands<'_>, cut: &Cut<'_>, heads: usize, room: &mut Room<'_>) {
    let per_part = cut.n_units / heads;
    while let Some(piece) = task.queue.take(per_part * cut.n_parts) {
        let (part, first) = (piece / per_part, piece % per_part * heads);
        for at in first..first + heads {
            let unit = cut.tiles.unit(at);
            // The same cells of the next head.
            let next = (at + 1 < first + heads).then_some(unit.head + 1);
            let next = next.and_then(|head| Some((head, op.first_page(unit.first, part)?)));
            // SAFETY: no other thread takes this piece, and nobody reads it in this phase.
            let shared = unsafe { task.shared.write(cut.state_at(at, part)) };
            op.load_queries(&unit, room);
            op.attend(&unit, part, next, &mut State::new(shared, cut.n_queries), room);
        }
    }
}

/// Merges the results of parts, in a phase after [`attention`], if threads shared units.
pub(super) fn merge(mut task: Task<'_>, p: &Attention) {
    let op = Operands::new(&task, p);
    let s = op.s;
    let mut scratch = std::mem::take(&mut task.scratch);
    let cut = Cut::new(&task, &op, take(&mut scratch, s.n_tokens + 1));
    let mut whole = State::new(take(&mut scratch, cut.state), cut.n_queries);
    while cut.heads.is_some()
        && let Some(unit) = task.queue.take(cut.n_units)
    {
        whole.clear();
        for part in 0..cut.n_parts {
            // SAFETY: the states were written in an earlier phase, and are not written again in this one.
            whole.merge(unsafe { task.shared.read(cut.state_at(unit, part)) });
        }
        op.finish(&cut.tiles.unit(unit), &mut whole, &task);
    }
}

/// Running results of a unit's queries: the largest score so far, the sum of e^(score - largest), and the values so weighted.
struct State<'a> {
    max: &'a mut [f32],
    sum: &'a mut [f32],
    values: &'a mut [f32],
}

impl<'a> State<'a> {
    fn new(floats: &'a mut [f32], n_queries: usize) -> State<'a> {
        let (max, rest) = floats.split_at_mut(n_queries);
        let (sum, values) = rest.split_at_mut(n_queries);
        State { max, sum, values }
    }

    fn clear(&mut self) {
        self.max.fill(f32::NEG_INFINITY);
        self.sum.fill(0.0);
        self.values.fill(0.0);
    }

    fn values_of(&mut self, query: usize) -> &mut [f32] {
        let dv = self.values.len() / self.max.len();
        &mut self.values[query * dv..(query + 1) * dv]
    }

    /// Makes room for scores up to `max`: what was summed up is scaled down if that is larger than before.
    fn raise(&mut self, query: usize, max: f32) {
        let before = std::mem::replace(&mut self.max[query], max);
        if max > before && self.sum[query] > 0.0 {
            let factor = (before - max).exp();
            self.sum[query] *= factor;
            rows::scale_in_place(self.values_of(query), factor, 0.0);
        }
    }

    /// Adds the results of other cells.
    fn merge(&mut self, other: &[f32]) {
        let n = self.max.len();
        let (max, rest) = other.split_at(n);
        let (sum, values) = rest.split_at(n);
        let dv = values.len() / n;
        for query in 0..n {
            if sum[query] > 0.0 {
                self.raise(query, self.max[query].max(max[query]));
                let factor = (max[query] - self.max[query]).exp();
                self.sum[query] += sum[query] * factor;
                rows::axpy(factor, &values[query * dv..(query + 1) * dv], self.values_of(query));
            }
        }
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
    /// The queries in lanes, if they are.
    prompt: Option<Prompt<'a>>,
}

impl<'a> Room<'a> {
    fn new(scratch: &mut &'a mut [f32], s: &Sizes) -> Room<'a> {
        Room {
            queries: take(scratch, s.max_queries() * s.dk),
            scores: take(scratch, s.together() * PAGE),
            factors: take(scratch, s.together()),
            kernel: take(scratch, s.kernel_scratch()),
            tiles: TileRoom::new(scratch, s),
            prompt: prompt::room(scratch, s),
        }
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

/// Biases by relative position.
struct Biases<'a> {
    /// `[n_head, n_buckets]`
    table: &'a [f32],
    /// Row of each distance within its side.
    near: [u8; Buckets::FAR + 1],
    /// First row for keys behind the query.
    behind: usize,
}

impl<'a> Biases<'a> {
    fn new(table: Source<'a>, buckets: Buckets) -> Biases<'a> {
        let side = buckets.side(table.tensor.ne[1]);
        Biases {
            table: table.floats(0, table.tensor.nelements()),
            // There are fewer than 256 rows.
            near: std::array::from_fn(|distance| Buckets::near(side, distance) as u8),
            behind: side,
        }
    }

    /// Of head `head`, for a key `ahead` positions behind the query.
    fn of(&self, buckets: Buckets, n_head: usize, head: usize, ahead: i64) -> f32 {
        let around = buckets == Buckets::Around;
        let distance = if around {
            ahead.unsigned_abs()
        } else {
            ahead.min(0).unsigned_abs()
        };
        let near = self.near[distance.min(Buckets::FAR as u64) as usize];
        let first = if around && ahead > 0 { self.behind } else { 0 };
        self.table[head + n_head * (first + usize::from(near))]
    }
}

impl<'a> Operands<'a> {
    fn new(task: &Task<'a>, p: &'a Attention) -> Operands<'a> {
        let at = p.operands().map(|i| task.source(i));
        let s = Sizes::new(
            &at.map(|source| source.tensor),
            p,
            task.planned.any_order,
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

    /// How the page table of a token is cut.
    fn parts(&self, t: usize) -> Parts {
        Parts::new(self.visible.entries(t).len(), &self.s)
    }

    /// The entries of a part of a token's page table.
    fn entries(&self, t: usize, part: usize) -> Range<usize> {
        let entries = self.visible.entries(t);
        let n_pages = self.parts(t).pages;
        let first = entries.start.saturating_add(part * n_pages).min(entries.end);
        first..entries.end.min(first.saturating_add(n_pages))
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
        if self.s.by_tiles {
            return self.attend_by_tiles(unit, of_part, next, state, room);
        }
        if let Some(prompt) = room.prompt.as_mut().filter(|_| self.is_in_lanes(unit))
            && self.attend_in_lanes(unit, of_part.clone(), next, state, prompt)
        {
            return;
        }
        for entry in of_part.clone() {
            let page = self.visible.page(entry);
            let mut seen = [0u64; BLOCK_QUERIES];
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
        tests::N_SCORED.set(tests::N_SCORED.get() + 1);
        let s = &self.s;
        let keys = cache_rows(&self.k, unit.head, page, next);
        let values = cache_rows(&self.v, unit.head, page, next);
        // What is not seen is not touched: whatever other sequences left there, not even infinities get out.
        for (i, seen) in seen.chunks(s.block).enumerate() {
            let wanted = seen.iter().fold(0, |any, seen| any | seen);
            if wanted == 0 {
                continue;
            }
            let first = i * s.together();
            let queries = first..first + seen.len() * s.group();
            let n = queries.len();
            let (scores, factors) = (&mut room.scores[..n * PAGE], &mut room.factors[..n]);
            let of_block = &room.queries[queries.start * s.dk..queries.end * s.dk];
            kernel::scores(&keys, wanted, of_block, scores, room.kernel);
            self.adjust(unit, first, page, scores.chunks_exact_mut(PAGE));
            let (max, sum) = (&mut state.max[queries.clone()], &mut state.sum[queries.clone()]);
            kernel::softmax_step(scores, seen, max, sum, factors);
            let sums = &mut state.values[queries.start * s.dv..queries.end * s.dv];
            kernel::add_values(&values, seen, scores, factors, sums, room.kernel);
        }
    }

    /// The unit's queries, token by token, times the scale.
    fn load_queries(&self, unit: &Unit, room: &mut Room<'_>) {
        let (group, head) = (self.s.group(), unit.head);
        let out = &mut room.queries[..unit.tokens().len() * group * self.s.dk];
        let queries = unit
            .tokens()
            .flat_map(|t| (0..group).map(move |g| [head * group + g, t, 0]));
        for (i, out) in queries.zip(out.chunks_exact_mut(self.s.dk)) {
            self.q.copy_row(i, out);
            rows::scale_in_place(out, self.p.scale, 0.0);
        }
        if self.s.by_tiles {
            kernel::tiles::put_queries(out, self.s.dk, room.tiles.queries);
        }
        if let Some(prompt) = room.prompt.as_mut().filter(|_| self.is_in_lanes(unit)) {
            prompt.set_queries(out);
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

    /// Turns products with a page into scores: soft cap, ALiBi, biases by relative position. `scores` are rows of the unit's queries from query `first` on.
    fn adjust<'s>(&self, unit: &Unit, first: usize, page: &Page, scores: impl Iterator<Item = &'s mut [f32]>) {
        if self.p.softcap == 0.0 && self.p.max_bias == 0.0 && self.biases.is_none() {
            return;
        }
        let group = self.s.group();
        for (i, scores) in (first..).zip(scores) {
            let (head, t) = (unit.head * group + i % group, unit.first + i / group);
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
        let (s, first_head) = (&self.s, unit.head * self.s.group());
        let queries = unit
            .tokens()
            .flat_map(|t| (first_head..first_head + s.group()).map(move |h| (h, t)));
        for (i, (head, t)) in queries.enumerate() {
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

/// The keys or values of a page, of one head; `next` are the head and the page that are read after it.
fn cache_rows<'a>(source: &Source<'a>, head: usize, page: &Page, next: Option<(usize, Page)>) -> CacheRows<'a> {
    let rows = |(head, page): (usize, Page)| source.span(2, [head, page.first, 0], page.len);
    CacheRows {
        ty: source.tensor.ty,
        bytes: rows((head, *page)),
        stride: source.tensor.nb[2],
        n: page.len,
        d: source.tensor.ne[0],
        next: next.filter(|(_, page)| page.len > 0).map_or(&[], rows),
    }
}

/// Slopes of a geometric series over the largest power of two of heads; the others lie in between.
fn alibi_slope(max_bias: f32, head: usize, n_head: usize) -> f32 {
    let power = 1usize << n_head.ilog2();
    let (first, exponent) = if head < power {
        (-max_bias / power as f32, head + 1)
    } else {
        (-max_bias / 2.0 / power as f32, 2 * (head - power) + 1)
    };
    (first * exponent as f32).exp2()
}

#[cfg(test)]
mod tests;
