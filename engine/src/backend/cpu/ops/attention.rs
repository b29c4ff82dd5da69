//! Attention by online softmax: keys and values are read in blocks of cells, and of the scores only those of one block exist.
//!
//! A unit of work is some tokens and the query heads that share one key head, so that what is read of a cache serves as many
//! queries as possible. The cells of a unit are cut into parts, and the results of parts are merged in order, so that results do not depend on
//! who computes which part: where units are many each is computed by one thread, and where they are few (one token) threads share parts.

use kernels::{GgmlType, MatMul, matmul, matmul_scratch, rows};

use super::{Need, Stop, Task};
use crate::backend::cpu::scratch::take;
use crate::backend::cpu::view::{Source, Target};
use crate::graph::{Attention, Buckets, Graph, Tensor, Window};

/// Cells of a block: their visibility to a token is a word of bits.
const CELLS: usize = 64;

/// Queries (tokens times heads) that a unit has at most, unless more heads share one key head.
const QUERIES: usize = 32;

/// Least cells of a part.
const MIN_PART: usize = 2 * CELLS;

/// Most parts of a unit.
const MAX_PARTS: usize = 32;

/// Units per thread from which on each unit is computed by one thread.
const MANY_UNITS: usize = 2;

/// Floats that the results of parts may take up; where they would take more, each unit is computed by one thread.
const MAX_SHARED: usize = 1 << 22;

/// Sizes of the operands.
#[derive(Clone, Copy)]
struct Sizes {
    dk: usize,
    dv: usize,
    n_head: usize,
    n_head_kv: usize,
    n_tokens: usize,
    n_kv: usize,
}

impl Sizes {
    fn new(q: &Tensor, k: &Tensor, v: &Tensor) -> Sizes {
        Sizes {
            dk: q.ne[0],
            dv: v.ne[0],
            n_head: q.ne[1],
            n_head_kv: k.ne[1],
            n_tokens: q.ne[2],
            n_kv: k.ne[2],
        }
    }

    /// Query heads that share a key head.
    fn group(&self) -> usize {
        self.n_head / self.n_head_kv
    }

    /// Most queries of a unit, whatever the number of tokens.
    fn max_queries(&self) -> usize {
        QUERIES.max(self.group())
    }

    /// Floats of a unit's state: largest score, sum and weighted values of each query.
    fn state(&self) -> usize {
        self.max_queries() * (2 + self.dv)
    }
}

/// How the work is cut. Only `shares_parts` depends on the number of threads: it says who computes what, and no sum depends on that.
#[derive(Clone, Copy)]
struct Cut {
    /// Tokens of a unit.
    tokens: usize,
    units: usize,
    /// Parts that the cells of each unit are split into.
    parts: usize,
    /// Cells of a part.
    cells: usize,
    /// Threads take parts, else whole units.
    shares_parts: bool,
}

impl Cut {
    fn new(s: &Sizes, nth: usize) -> Cut {
        let tokens = (QUERIES / s.group()).clamp(1, s.n_tokens.max(1));
        let units = s.n_head_kv * s.n_tokens.div_ceil(tokens);
        let cells = MIN_PART.max(s.n_kv.div_ceil(MAX_PARTS)).next_multiple_of(CELLS);
        let parts = s.n_kv.div_ceil(cells).max(1);
        let floats = units.saturating_mul(parts).saturating_mul(s.state());
        Cut {
            tokens,
            units,
            parts,
            cells,
            shares_parts: nth > 1 && parts > 1 && units < MANY_UNITS * nth && floats <= MAX_SHARED,
        }
    }
}

/// A thread's own: queries, scores, a block of values, the states of a unit and of a part, and the kernel's scratch. Shared: the states of all
/// parts, if threads share units.
pub(super) fn need(graph: &Graph, node: &Tensor, nth: usize) -> Need {
    let operand = |i: usize| graph.tensor(node.source(i));
    let s = Sizes::new(operand(0), operand(1), operand(2));
    let n = s.max_queries();
    let parts = s.n_kv.div_ceil(MIN_PART).min(MAX_PARTS);
    let shared = (MANY_UNITS * nth).saturating_mul(parts).saturating_mul(s.state());
    Need {
        per_thread: n * s.dk + n * CELLS + CELLS * s.dv + 2 * s.state() + matmul_scratch(s.dk, n.max(2)),
        shared: if nth == 1 { 0 } else { shared.min(MAX_SHARED) },
    }
}

pub(super) fn attention(task: Task<'_>, p: &Attention) -> Result<(), Stop> {
    let job = Job::new(&task, p);
    let Job { s, cut, .. } = job;
    let target = task.target;
    let mut scratch = task.scratch;
    let mut room = Room::new(&mut scratch, &s);
    let mut whole = State::new(take(&mut scratch, s.state()), s.max_queries());
    let of_part = take(&mut scratch, s.state());
    if !cut.shares_parts {
        while let Some(unit) = task.queue.take(cut.units) {
            whole.clear();
            for part in 0..cut.parts {
                job.attend(
                    unit,
                    part,
                    &mut State::new(of_part, s.max_queries()),
                    &mut room,
                    scratch,
                );
                whole.merge(of_part);
            }
            job.finish(unit, &mut whole, &target);
        }
        return Ok(());
    }
    let state_at = |piece: usize| piece * s.state()..(piece + 1) * s.state();
    while let Some(piece) = task.queue.take(cut.units * cut.parts) {
        // SAFETY: no other thread takes this piece, and nobody reads it before the barrier.
        let shared = unsafe { task.shared.write(state_at(piece)) };
        let (unit, part) = (piece / cut.parts, piece % cut.parts);
        job.attend(unit, part, &mut State::new(shared, s.max_queries()), &mut room, scratch);
    }
    task.worker.barrier()?;
    for unit in task.worker.share(cut.units) {
        whole.clear();
        for part in 0..cut.parts {
            // SAFETY: the states were written before the barrier, and are not written again in this step.
            whole.merge(unsafe { task.shared.read(state_at(unit * cut.parts + part)) });
        }
        job.finish(unit, &mut whole, &target);
    }
    Ok(())
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
    /// Scores of a block, [`CELLS`] to a query.
    scores: &'a mut [f32],
    /// Values of a block, where they are not stored as floats.
    values: &'a mut [f32],
}

impl<'a> Room<'a> {
    fn new(scratch: &mut &'a mut [f32], s: &Sizes) -> Room<'a> {
        Room {
            queries: take(scratch, s.max_queries() * s.dk),
            scores: take(scratch, s.max_queries() * CELLS),
            values: take(scratch, CELLS * s.dv),
        }
    }
}

/// The operands.
struct Job<'a> {
    p: &'a Attention,
    s: Sizes,
    cut: Cut,
    q: Source<'a>,
    k: Source<'a>,
    v: Source<'a>,
    cell_pos: &'a [i32],
    cell_seqs: &'a [i64],
    query_pos: &'a [i32],
    query_seq: &'a [i32],
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

/// What a token sees: cells of one sequence at positions `from..=to`.
#[derive(Clone, Copy)]
struct Sight {
    from: i32,
    to: i32,
    seq: u32,
}

impl<'a> Job<'a> {
    fn new(task: &Task<'a>, p: &'a Attention) -> Job<'a> {
        let (q, k, v) = (task.source(0), task.source(1), task.source(2));
        let s = Sizes::new(q.tensor, k.tensor, v.tensor);
        let (sinks, selection) = p.optional_sources(task.node.sources().count());
        Job {
            p,
            s,
            cut: Cut::new(&s, task.worker.nth),
            q,
            k,
            v,
            cell_pos: task.source(3).list(),
            cell_seqs: task.source(4).list(),
            query_pos: task.source(5).list(),
            query_seq: task.source(6).list(),
            sinks: sinks.map(|i| task.source(i)),
            selection: selection.map(|i| {
                let cells = task.source(i);
                Selection {
                    cells: cells.list(),
                    n: cells.ne()[0],
                    lists: Attention::lists_per_token(cells.ne(), s.n_head_kv, s.n_tokens).unwrap_or(1),
                }
            }),
            biases: (p.buckets != Buckets::None).then(|| Biases::new(task.source(7), p.buckets)),
        }
    }

    /// The key head of a unit.
    fn head(&self, unit: usize) -> usize {
        unit % self.s.n_head_kv
    }

    fn tokens(&self, unit: usize) -> std::ops::Range<usize> {
        let first = unit / self.s.n_head_kv * self.cut.tokens;
        first..self.s.n_tokens.min(first + self.cut.tokens)
    }

    /// Attends the unit's queries to one part of the cells.
    fn attend(&self, unit: usize, part: usize, state: &mut State<'_>, room: &mut Room<'_>, scratch: &mut [f32]) {
        state.clear();
        let (s, tokens) = (&self.s, self.tokens(unit));
        self.load_queries(unit, room.queries);
        let cells = part * self.cut.cells..s.n_kv.min((part + 1) * self.cut.cells);
        for first in cells.clone().step_by(CELLS) {
            let n = CELLS.min(cells.end - first);
            let mut seen = [0u64; QUERIES];
            let seen = &mut seen[..tokens.len()];
            for (seen, t) in seen.iter_mut().zip(tokens.clone()) {
                *seen = self.visible(t, first..first + n);
                if *seen != 0 {
                    *seen &= self.selected(self.head(unit), t, first);
                }
            }
            let any = seen.iter().fold(0, |any, seen| any | seen);
            if any == 0 {
                continue;
            }
            self.score(unit, first, n, room, scratch);
            let values = self.load_values(unit, first, n, any, room.values);
            for (i, scores) in room
                .scores
                .chunks_exact_mut(CELLS)
                .take(tokens.len() * s.group())
                .enumerate()
            {
                let (t, seen) = (tokens.start + i / s.group(), seen[i / s.group()]);
                if seen != 0 {
                    let head = self.head(unit) * s.group() + i % s.group();
                    self.adjust(&mut scores[..n], head, t, first, seen);
                    accumulate(state, i, &mut scores[..n], seen, &values);
                }
            }
        }
    }

    /// The unit's queries, token by token, times the scale.
    fn load_queries(&self, unit: usize, out: &mut [f32]) {
        let (group, head) = (self.s.group(), self.head(unit));
        let queries = self
            .tokens(unit)
            .flat_map(|t| (0..group).map(move |g| [head * group + g, t, 0]));
        for (i, out) in queries.zip(out.chunks_exact_mut(self.s.dk)) {
            self.q.copy_row(i, out);
            rows::scale_in_place(out, self.p.scale, 0.0);
        }
    }

    /// Which of up to 64 cells token `t` sees, by bits.
    fn visible(&self, t: usize, cells: std::ops::Range<usize>) -> u64 {
        let Some(Sight { from, to, seq }) = self.sight(t) else {
            return 0;
        };
        // What of these stands for single tokens.
        let n_single = self.p.compressed_from.map_or(CELLS, |c| c.saturating_sub(cells.start));
        let cells = self.cell_pos[cells.clone()].iter().zip(&self.cell_seqs[cells]);
        cells.enumerate().fold(0, |bits, (i, (&pos, &seqs))| {
            let from = if i < n_single { from } else { 0 };
            let visible = (pos >= from) & (pos <= to) & (seqs >> seq & 1 == 1);
            bits | u64::from(visible) << i
        })
    }

    /// Which of the 64 cells from `first` on are selected for token `t` and key head `head`, by bits.
    fn selected(&self, head: usize, t: usize, first: usize) -> u64 {
        let Some(Selection { cells, n, lists }) = self.selection else {
            return u64::MAX;
        };
        // Those that stand for single tokens are not selected among.
        let start = self.p.compressed_from.unwrap_or(0);
        let single = match start.saturating_sub(first) {
            n if n < CELLS => (1u64 << n) - 1,
            _ => return u64::MAX,
        };
        let list = t * lists + head % lists;
        let cells = cells[list * n..(list + 1) * n].iter();
        cells.fold(single, |bits, &cell| {
            match usize::try_from(cell).ok().and_then(|c| (c + start).checked_sub(first)) {
                Some(i) if i < CELLS => bits | 1 << i,
                _ => bits,
            }
        })
    }

    /// The causal rule and the windows, as a range of positions. `None` if the token sees nothing.
    fn sight(&self, t: usize) -> Option<Sight> {
        let seq = u32::try_from(self.query_seq[t]).ok().filter(|&seq| seq < 64)?;
        let pos = i64::from(self.query_pos[t]);
        let size = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        let (from, to) = match self.p.window {
            Window::None | Window::Compressed(_) => (0, i64::MAX),
            Window::Standard(n) => (pos.saturating_sub(size(n)).saturating_add(1), i64::MAX),
            Window::Chunked(n) => (pos / size(n) * size(n), i64::MAX),
            Window::Symmetric(n) => (pos.saturating_sub(size(n / 2)), pos.saturating_add(size(n / 2))),
        };
        let to = if self.p.causal { to.min(pos) } else { to };
        Some(Sight {
            from: i32::try_from(from.max(0)).ok()?,
            to: to.clamp(-1, i64::from(i32::MAX)) as i32,
            seq,
        })
    }

    /// Products of the unit's queries with the keys of `n` cells.
    fn score(&self, unit: usize, first: usize, n: usize, room: &mut Room<'_>, scratch: &mut [f32]) {
        let s = &self.s;
        let args = MatMul {
            ty: self.k.tensor.ty,
            w: self.k.span(2, [self.head(unit), first, 0], n),
            row_stride: self.k.tensor.nb[2],
            m: n,
            k: s.dk,
            x: room.queries,
            x_stride: s.dk,
            n: self.tokens(unit).len() * s.group(),
        };
        // SAFETY: the scores are this thread's own, [`CELLS`] for each of the most queries that a unit has.
        unsafe { matmul(&args, room.scores.as_mut_ptr(), CELLS, scratch) };
    }

    /// The values of a block; of those that are not stored as floats only the cells that some query sees are converted.
    fn load_values<'s>(&self, unit: usize, first: usize, n: usize, any: u64, out: &'s mut [f32]) -> Values<'s>
    where
        'a: 's,
    {
        let (head, dv) = (self.head(unit), self.s.dv);
        if self.v.tensor.ty == GgmlType::F32
            && let Some((floats, stride)) = self.v.float_span(2, [head, first, 0], n)
        {
            return Values { floats, stride };
        }
        let (ty, stride) = (self.v.tensor.ty, self.v.tensor.nb[2]);
        for run in runs(any) {
            let rows = self.v.span(2, [head, first + run.start, 0], run.len());
            rows::dequantize_rows(ty, rows, stride, &mut out[run.start * dv..run.end * dv], dv);
        }
        Values {
            floats: out,
            stride: dv,
        }
    }

    /// Turns products into scores: soft cap, ALiBi, biases by relative position, and the cells that are not seen.
    fn adjust(&self, scores: &mut [f32], head: usize, t: usize, first: usize, seen: u64) {
        if self.p.softcap != 0.0 {
            let cap = self.p.softcap;
            scores.iter_mut().for_each(|x| *x = cap * (*x / cap).tanh());
        }
        if self.p.max_bias != 0.0 {
            let slope = alibi_slope(self.p.max_bias, head, self.s.n_head);
            for (x, &pos) in scores.iter_mut().zip(&self.cell_pos[first..]) {
                *x -= slope * (i64::from(self.query_pos[t]) - i64::from(pos)).abs() as f32;
            }
        }
        if let Some(biases) = &self.biases {
            for (x, &pos) in scores.iter_mut().zip(&self.cell_pos[first..]) {
                let ahead = i64::from(pos) - i64::from(self.query_pos[t]);
                *x += biases.of(self.p.buckets, self.s.n_head, head, ahead);
            }
        }
        if seen.count_ones() as usize != scores.len() {
            for (i, x) in scores.iter_mut().enumerate() {
                if seen >> i & 1 == 0 {
                    *x = f32::NEG_INFINITY;
                }
            }
        }
    }

    /// Divides by the sums, sinks included, and writes the results.
    fn finish(&self, unit: usize, state: &mut State<'_>, target: &Target<'_>) {
        let (s, first_head) = (&self.s, self.head(unit) * self.s.group());
        let queries = self
            .tokens(unit)
            .flat_map(|t| (first_head..first_head + s.group()).map(move |h| (h, t)));
        for (i, (head, t)) in queries.enumerate() {
            // SAFETY: a head and token belong to one unit, and a unit is finished once, by one thread.
            let out = unsafe { target.row(head + s.n_head * t) };
            if state.sum[i] == 0.0 {
                out.fill(0.0);
                continue;
            }
            if let Some(sinks) = &self.sinks {
                let sink = sinks.float([head, 0, 0, 0]);
                state.raise(i, state.max[i].max(sink));
                state.sum[i] += (sink - state.max[i]).exp();
            }
            let factor = 1.0 / state.sum[i];
            rows::scale(state.values_of(i), factor, 0.0, out);
        }
    }
}

/// Values of a block of cells.
struct Values<'a> {
    floats: &'a [f32],
    stride: usize,
}

/// Adds the values of the cells seen, weighted by the softmax of their scores.
fn accumulate(state: &mut State<'_>, query: usize, scores: &mut [f32], seen: u64, values: &Values<'_>) {
    let max = rows::max(scores);
    if max == f32::NEG_INFINITY {
        return;
    }
    state.raise(query, max.max(state.max[query]));
    state.sum[query] += rows::exp_sum(scores, state.max[query]);
    // What is not seen is not touched: whatever other sequences left there, not even infinities get out.
    let out = state.values_of(query);
    for run in runs(seen) {
        let floats = &values.floats[run.start * values.stride..];
        rows::axpy_rows(&scores[run], floats, values.stride, out);
    }
}

/// The runs of set bits.
fn runs(word: u64) -> impl Iterator<Item = std::ops::Range<usize>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let rest = word.checked_shr(at).filter(|&rest| rest != 0)?;
        let start = at + rest.trailing_zeros();
        at = start + (word >> start).trailing_ones();
        Some(start as usize..at as usize)
    })
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
mod tests {
    use super::runs;

    #[test]
    fn runs_of_bits() {
        let collect = |word| runs(word).map(|run| (run.start, run.end)).collect::<Vec<_>>();
        assert_eq!(collect(0), []);
        assert_eq!(collect(u64::MAX), [(0, 64)]);
        assert_eq!(collect(0b1011_1001), [(0, 1), (3, 6), (7, 8)]);
        assert_eq!(collect(1 << 63 | 1), [(0, 1), (63, 64)]);
    }
}
