//! Sparse attention: selection of blocks of cells by score, and cells found by position.

use super::{Need, Task};
use crate::backend::cpu::scratch::take;
use crate::graph::{BlockRule, Blocks, Graph, Tensor};

/// Visibility of cells to tokens.
pub(super) struct Sight<'a> {
    cell_pos: &'a [i32],
    cell_seqs: &'a [i64],
    pos: &'a [i32],
    seq: &'a [i32],
}

impl<'a> Sight<'a> {
    /// Positions and sets of cells, positions and sequences of tokens, from operand `first` on.
    pub(super) fn new(task: &Task<'a>, first: usize) -> Sight<'a> {
        Sight {
            cell_pos: task.source(first).list(),
            cell_seqs: task.source(first + 1).list(),
            pos: task.source(first + 2).list(),
            seq: task.source(first + 3).list(),
        }
    }

    /// True if the cell holds the token's sequence, at whatever position.
    fn shares(&self, t: usize, cell: usize) -> bool {
        let seq = self.seq[t];
        self.cell_pos[cell] >= 0 && (0..64).contains(&seq) && self.cell_seqs[cell] >> seq & 1 == 1
    }

    /// True if the cell holds the token's sequence at its position or before.
    pub(super) fn sees(&self, t: usize, cell: usize) -> bool {
        self.cell_pos[cell] <= self.pos[t] && self.shares(t, cell)
    }

    /// The first position of the token's sequence; 0 if no cell holds it.
    fn first(&self, t: usize) -> i32 {
        let cells = (0..self.cell_pos.len()).filter(|&cell| self.shares(t, cell));
        cells.map(|cell| self.cell_pos[cell]).min().unwrap_or(0)
    }
}

/// The number of no block, slot or cell.
const NONE: i32 = -1;

/// A table of blocks by number with open addressing, larger than there are cells, so that some slot stays empty.
struct Table<'a> {
    number: &'a mut [i32],
    score: &'a mut [f32],
    /// Cells of the block that the token sees.
    n_cells: &'a mut [u32],
    /// Slots in use, in the order of their first cells.
    order: &'a mut [u32],
    n_used: usize,
}

/// Stands for the number of cells of a chosen block.
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

    /// The slot of a block, its own or the empty one that will be.
    fn find(&self, number: i32) -> usize {
        let mask = self.number.len() - 1;
        let mut slot = number as usize & mask;
        while self.number[slot] != number && self.number[slot] != NONE {
            slot = (slot + 1) & mask;
        }
        slot
    }

    /// Counts a cell of a block, with its score if that is one of the block's; the block's slot.
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

    /// The score of a block for a token in block `own`; `None` if it cannot be selected.
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

/// Slots of a table for blocks of so many cells.
fn n_slots(n_kv: usize) -> usize {
    (n_kv + 1).next_power_of_two()
}

/// The table, a slot for each cell, and a row of scores.
pub(super) fn blocks_need(graph: &Graph, node: &Tensor) -> Need {
    let n_kv = graph.tensor(node.source(0)).ne[0];
    Need {
        per_thread: 3 * n_slots(n_kv) + 3 * n_kv,
        shared: 0,
    }
}

pub(super) fn select_blocks(task: Task<'_>, blocks: &Blocks) {
    let (scores, sight) = (task.source(0), Sight::new(&task, 1));
    let [n_kv, _, n_rows, _] = scores.ne();
    let n_tokens = sight.pos.len();
    // Positions are i32: in larger blocks all of them are in one.
    let size = i32::try_from(blocks.size).unwrap_or(i32::MAX);
    let mut scratch = task.scratch;
    let mut table = Table::new(&mut scratch, n_kv);
    let slots: &mut [i32] = bytemuck::cast_slice_mut(take(&mut scratch, n_kv));
    for (i, out) in task.target.int_rows() {
        let t = if n_rows == n_tokens { i[1] } else { i[0] };
        let scores = scores.row(i, scratch);
        let origin = match blocks.rule {
            BlockRule::Best { .. } => 0,
            BlockRule::Whole { .. } => sight.first(t),
        };
        table.clear();
        for (cell, slot) in slots.iter_mut().enumerate() {
            *slot = NONE;
            if sight.sees(t, cell) {
                let at = sight.cell_pos[cell] - origin;
                let counts = matches!(blocks.rule, BlockRule::Best { .. }) || at % size == size - 1;
                *slot = table.add(at / size, counts.then_some(scores[cell])) as i32;
            }
        }
        table.choose(blocks, sight.pos[t].saturating_sub(origin) / size);
        let is_chosen = |slot: i32| usize::try_from(slot).is_ok_and(|slot| table.n_cells[slot] == CHOSEN);
        let chosen = (0..n_kv).filter(|&cell| is_chosen(slots[cell]));
        out.fill(NONE);
        out.iter_mut().zip(chosen).for_each(|(out, cell)| *out = cell as i32);
    }
}

pub(super) fn last_cells(task: Task<'_>, n: usize) {
    let sight = Sight::new(&task, 0);
    for (i, out) in task.target.int_rows() {
        let t = i[0];
        out.fill(NONE);
        for cell in (0..sight.cell_pos.len()).filter(|&cell| sight.sees(t, cell)) {
            let back = (sight.pos[t] - sight.cell_pos[cell]) as usize;
            if back < n && out[n - 1 - back] == NONE {
                out[n - 1 - back] = cell as i32;
            }
        }
        out.iter_mut().for_each(|cell| *cell = (*cell).max(0));
    }
}

pub(super) fn earlier_positions(task: Task<'_>, back: usize) {
    let positions: &[i32] = task.source(0).list();
    // The rules say that it fits.
    let back = back as i32;
    for (_, out) in task.target.int_rows() {
        for (out, &pos) in out.iter_mut().zip(positions) {
            *out = pos.saturating_sub(back);
        }
    }
}
