//! Attention with online softmax over a paged KV cache. Only the scores of one page exist at a time, or of a
//! few pages where the CPU has tile kernels.
//!
//! A unit of work consists of some tokens with the same page table and the query heads of one KV head. Each cached row
//! thus serves many queries. With few queries, reading the cache dominates. Since the heads of a cell are adjacent in
//! memory, a unit then covers all heads, if that leaves enough work to share.
//!
//! The pages of a unit are divided into parts, and the results of the parts are merged in order. The division
//! depends only on the page table, so that results do not depend on the number of threads. If there are many
//! units, each is computed by one thread. If there are few (one token), threads share the parts.

mod biases;
mod operands;
mod scratch;
mod sizes;
mod state;
mod tiles;

use std::ops::Range;

use kernels::attention::FEW_QUERIES;

use self::operands::Operands;
use self::scratch::AttentionScratch;
use self::sizes::{AttentionUnit, MAX_PARTS, MIN_PART, QUERIES, Sizes};
use self::state::State;
use super::task::Task;
use super::visible::{Page, Visible};
use crate::backend::cpu::scratch::{ScratchSize, take};
use crate::graph::{Attention, Graph, PAGE, Tensor};

/// Minimum number of parts per thread for units that cover all heads.
const MANY_PARTS: usize = 2;

/// Number of units per thread from which each unit is computed by one thread.
const MANY_UNITS: usize = 2;

/// Maximum size of the shared results of parts, in floats. If they would need more, each unit is computed by
/// one thread.
const MAX_SHARED: usize = 1 << 22;

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

impl Operands<'_> {
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
                let next = if entry + 1 < of_part.end {
                    Some((unit.head, self.visible.page(entry + 1)))
                } else {
                    next
                };
                self.attend_to_page(unit, &page, next, seen, state, workspace);
            }
        }
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

#[cfg(test)]
mod tests;
