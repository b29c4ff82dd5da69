//! Sparse attention: selects blocks of cells by score, and finds cells by position.

use super::task::Task;
use super::visible::Visible;
use crate::backend::cpu::scratch::{ScratchSize, take};
use crate::graph::{BlockRule, Blocks, Graph, Tensor};

/// Sentinel for a missing block, slot, or cell.
const NONE: i32 = -1;

/// Hash table of blocks with open addressing. It has more slots than cells, so that at least one slot stays
/// empty.
struct Table<'a> {
    number: &'a mut [i32],
    score: &'a mut [f32],
    /// Number of the block's cells that the token sees.
    n_cells: &'a mut [u32],
    /// Occupied slots, in the order of their first cells.
    order: &'a mut [u32],
    n_used: usize,
}

/// Sentinel in `n_cells` for a selected block.
const CHOSEN: u32 = u32::MAX;

impl<'a> Table<'a> {
    fn new(scratch: &mut &'a mut [f32], n_kv: usize) -> Table<'a> {
        let n_slots = n_slots(n_kv);
        Table {
            number: bytemuck::cast_slice_mut(take(scratch, n_slots)),
            score: take(scratch, n_slots),
            n_cells: bytemuck::cast_slice_mut(take(scratch, n_slots)),
            order: bytemuck::cast_slice_mut(take(scratch, n_kv)),
            n_used: 0,
        }
    }

    fn clear(&mut self) {
        self.number.fill(NONE);
        self.n_used = 0;
    }

    /// Returns the slot of a block, or the empty slot where the block would be inserted.
    fn find(&self, number: i32) -> usize {
        let mask = self.number.len() - 1;
        let mut slot = number as usize & mask;
        while self.number[slot] != number && self.number[slot] != NONE {
            slot = (slot + 1) & mask;
        }
        slot
    }

    /// Counts a cell of a block and, if `score` is given, updates the block's score. Returns the block's
    /// slot.
    fn add(&mut self, number: i32, score: Option<f32>) -> usize {
        let slot = self.find(number);
        if self.number[slot] == NONE {
            self.number[slot] = number;
            self.score[slot] = f32::NEG_INFINITY;
            self.n_cells[slot] = 0;
            self.order[self.n_used] = slot as u32;
            self.n_used += 1;
        }
        self.n_cells[slot] += 1;
        if let Some(score) = score {
            self.score[slot] = self.score[slot].max(score);
        }
        slot
    }

    /// Returns the score of a block for a token in block `own`, or `None` if the block cannot be selected.
    fn worth(&self, slot: u32, blocks: &Blocks, own: i32) -> Option<f32> {
        let slot = slot as usize;
        match blocks.rule {
            BlockRule::Best { local } if (own.saturating_sub(self.number[slot]) as usize) < local => {
                Some(f32::INFINITY)
            }
            BlockRule::Whole { .. } if (self.n_cells[slot] as usize) < blocks.size => None,
            _ => Some(self.score[slot]),
        }
    }

    /// Selects blocks for a token in block `own`.
    fn choose(&mut self, blocks: &Blocks, own: i32) {
        let all = std::mem::take(&mut self.order);
        let order = &mut all[..self.n_used];
        let better = |&a: &u32, &b: &u32| {
            let by_worth = match [a, b].map(|slot| self.worth(slot, blocks, own)) {
                [Some(a), Some(b)] => b.total_cmp(&a),
                [a, b] => b.is_some().cmp(&a.is_some()),
            };
            by_worth.then_with(|| self.number[a as usize].cmp(&self.number[b as usize]))
        };
        if blocks.k < order.len() {
            order.select_nth_unstable_by(blocks.k, better);
        }
        let tail = blocks.rule == (BlockRule::Whole { tail: true });
        for (rank, &slot) in order.iter().enumerate() {
            let chosen = match self.worth(slot, blocks, own) {
                Some(_) => rank < blocks.k,
                None => tail && self.number[slot as usize] == own,
            };
            if chosen {
                self.n_cells[slot as usize] = CHOSEN;
            }
        }
        self.order = all;
    }
}

/// Returns the number of slots of a table for `n_kv` cells.
fn n_slots(n_kv: usize) -> usize {
    (n_kv + 1).next_power_of_two()
}

/// Returns the scratch memory for the table, a slot index per cell, and a row of scores.
pub(super) fn blocks_scratch_size(graph: &Graph, node: &Tensor) -> ScratchSize {
    let n_kv = graph.tensor(node.source(0)).ne[0];
    ScratchSize {
        per_thread: 3 * n_slots(n_kv) + 3 * n_kv,
        shared: 0,
    }
}

pub(super) fn select_blocks(task: Task<'_>, blocks: &Blocks) {
    let (scores, visible) = (task.source(0), Visible::new(&task));
    let [n_kv, _, n_rows, _] = scores.ne();
    let n_tokens = visible.pos.len();
    // Positions are i32, so that a larger block contains all of them.
    let size = i32::try_from(blocks.size).unwrap_or(i32::MAX);
    let mut scratch = task.scratch;
    let mut table = Table::new(&mut scratch, n_kv);
    let slots: &mut [i32] = bytemuck::cast_slice_mut(take(&mut scratch, n_kv));
    for (i, out) in task.target.int_rows() {
        let t = if n_rows == n_tokens { i[1] } else { i[0] };
        let scores = scores.row(i, scratch);
        let origin = match blocks.rule {
            BlockRule::Best { .. } => 0,
            BlockRule::Whole { .. } => visible.first_pos(t),
        };
        table.clear();
        // Cells are in ascending order, at most `n_kv` of them.
        for (cell, slot) in visible.seen(t).zip(&mut *slots) {
            let at = visible.cell_pos[cell] - origin;
            let counts = matches!(blocks.rule, BlockRule::Best { .. }) || at % size == size - 1;
            let score = if counts { Some(scores[cell]) } else { None };
            *slot = table.add(at / size, score) as i32;
        }
        table.choose(blocks, visible.pos[t].saturating_sub(origin) / size);
        let chosen = visible
            .seen(t)
            .zip(&*slots)
            .filter(|&(_, &slot)| table.n_cells[slot as usize] == CHOSEN);
        out.fill(NONE);
        out.iter_mut()
            .zip(chosen)
            .for_each(|(out, (cell, _))| *out = cell as i32);
    }
}

pub(super) fn recent_cells(task: Task<'_>, n: usize) {
    let visible = Visible::new(&task);
    for (i, out) in task.target.int_rows() {
        let t = i[0];
        out.fill(NONE);
        for cell in visible.seen(t) {
            let back = (visible.pos[t] - visible.cell_pos[cell]) as usize;
            if back < n && out[n - 1 - back] == NONE {
                out[n - 1 - back] = cell as i32;
            }
        }
        out.iter_mut().for_each(|cell| *cell = (*cell).max(0));
    }
}

pub(super) fn shift_positions(task: Task<'_>, back: usize) {
    let positions: &[i32] = task.source(0).list();
    // `graph::rules` checked that `back` fits into i32.
    let back = back as i32;
    for (_, out) in task.target.int_rows() {
        for (out, &pos) in out.iter_mut().zip(positions) {
            *out = pos.saturating_sub(back);
        }
    }
}
