//! Recurrent states: one cell per state, with its position and sequences.
//!
//! A sequence continues from its newest cell. A decode writes first to a new cell and then in place, token by
//! token. The previous cell is kept until the decode succeeds, and sequences that share a cell diverge
//! automatically. Older cells of a sequence are checkpoints, to which the sequence can be truncated exactly.
//! Checkpoints are evicted when cells are needed.

use std::sync::Arc;

use crate::backend::{Buffer, BufferType, Device};
use crate::builder::{StateSlot, StateSpec};
use crate::graph::{BufferId, BufferSlice};

use super::batch::{BatchToken, MAX_SEQUENCES, SeqSet};
use super::cells::EMPTY;
use super::memory::{Span, by_buffer_type};
use super::{ContextError, ContextParams, MemoryError};

/// State cell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct StateCell {
    /// Last position included in the state; [`EMPTY`] for a free cell.
    pub pos: i32,
    /// Sequences that use the cell.
    pub seqs: SeqSet,
}

impl StateCell {
    fn free() -> StateCell {
        StateCell {
            pos: EMPTY,
            seqs: SeqSet::default(),
        }
    }
}

/// Newest state cell of each sequence.
type NewestCells = [Option<u32>; MAX_SEQUENCES];

/// States of all recurrent ops of a model; without recurrent ops there are no cells.
pub(super) struct StateMemory {
    slots: Vec<StateSlot>,
    specs: Vec<StateSpec>,
    cells: Vec<StateCell>,
    newest: NewestCells,
    /// Cells and newest cells before the current decode.
    before: (Vec<StateCell>, NewestCells),
    /// Cells written by the current decode.
    written: Vec<bool>,
    /// Last position of each sequence after the current decode.
    last: [i32; MAX_SEQUENCES],
    /// Number of trailing positions whose states get separate cells.
    n_rollback: i32,
    /// Cells that each token of the current ubatch reads from (negative: zeros) and writes to.
    from: Vec<i32>,
    to: Vec<i32>,
    n_bytes: usize,
}

impl StateMemory {
    /// Computes the layout: per sequence, the current cell, the previous cell, and `n_rollback` checkpoints.
    /// [`StateMemory::allocate`] allocates the buffers.
    pub fn new(specs: &[StateSpec], params: &ContextParams) -> StateMemory {
        let n_cells = if specs.is_empty() {
            0
        } else {
            params.memory(params.n_ctx).n_state_cells()
        };
        let nowhere = BufferSlice {
            buffer: BufferId(0),
            offset: 0,
        };
        let slot = |s: &StateSpec| StateSlot {
            row: s.row,
            home: nowhere,
        };
        StateMemory {
            slots: specs.iter().map(slot).collect(),
            specs: specs.to_vec(),
            cells: vec![StateCell::free(); n_cells],
            newest: [None; MAX_SEQUENCES],
            before: (vec![StateCell::free(); n_cells], [None; MAX_SEQUENCES]),
            written: vec![false; n_cells],
            last: [EMPTY; MAX_SEQUENCES],
            n_rollback: i32::try_from(params.n_rollback).unwrap_or(i32::MAX),
            from: Vec::with_capacity(params.n_ubatch),
            to: Vec::with_capacity(params.n_ubatch),
            n_bytes: 0,
        }
    }

    /// Allocates one buffer per device for the states; `register` assigns its id.
    pub fn allocate(
        &mut self,
        device_of: impl Fn(usize) -> Arc<dyn Device>,
        mut register: impl FnMut(Box<dyn Buffer>) -> BufferId,
    ) -> Result<(), ContextError> {
        for (ty, slots) in by_buffer_type(self.specs.iter().map(|s| device_of(s.layer).buffer_type())) {
            self.allocate_slots(&slots, ty.as_ref(), &mut register)?;
        }
        Ok(())
    }

    fn allocate_slots(
        &mut self,
        slots: &[usize],
        buffer_type: &dyn BufferType,
        register: &mut impl FnMut(Box<dyn Buffer>) -> BufferId,
    ) -> Result<(), ContextError> {
        let mut size = 0usize;
        let mut offsets = Vec::new();
        for &i in slots {
            // Saturates on overflow; the allocation then fails with an out-of-memory error.
            let offset = size
                .checked_next_multiple_of(buffer_type.alignment())
                .unwrap_or(usize::MAX);
            let bytes = self.row_bytes(i).saturating_mul(self.cells.len());
            size = offset.saturating_add(bytes);
            offsets.push(offset);
        }
        let buffer = register(buffer_type.allocate(size)?);
        self.n_bytes += size;
        for (&i, offset) in slots.iter().zip(offsets) {
            self.slots[i].home = BufferSlice { buffer, offset };
        }
        Ok(())
    }

    /// Returns the size of a state of a slot in bytes.
    pub fn row_bytes(&self, slot: usize) -> usize {
        self.specs[slot].row.saturating_mul(size_of::<f32>())
    }

    /// Returns true if the model has no recurrent ops.
    pub fn is_unused(&self) -> bool {
        self.specs.is_empty()
    }

    pub fn slots(&self) -> &[StateSlot] {
        &self.slots
    }

    pub fn specs(&self) -> &[StateSpec] {
        &self.specs
    }

    pub fn cells(&self) -> &[StateCell] {
        &self.cells
    }

    /// Returns the size of all states in bytes.
    pub fn n_bytes(&self) -> usize {
        self.n_bytes
    }

    /// Returns the number of cells in use.
    pub fn n_used(&self) -> usize {
        self.cells.iter().filter(|c| !c.seqs.is_empty()).count()
    }

    /// Returns the next position of `seq`.
    pub fn next_pos(&self, seq: usize) -> i32 {
        self.newest(seq).map_or(0, |c| self.cells[c].pos + 1)
    }

    /// Starts a decode of these tokens, which are placed in ubatches.
    pub fn begin(&mut self, tokens: &[BatchToken]) {
        self.before.0.copy_from_slice(&self.cells);
        self.before.1 = self.newest;
        self.written.fill(false);
        for t in tokens {
            t.seqs.iter().for_each(|s| self.last[s] = t.pos);
        }
    }

    /// Assigns cells to the tokens of a ubatch. After an error, call [`StateMemory::rollback`].
    pub fn place(&mut self, tokens: &[BatchToken]) -> Result<(), MemoryError> {
        self.from.clear();
        self.to.clear();
        if self.is_unused() {
            return Ok(());
        }
        for t in tokens {
            let current = self.common_cell(t.seqs)?;
            // Do not overwrite a state that must be kept as a checkpoint.
            let in_place = |c: &usize| {
                let keep_from = t
                    .seqs
                    .iter()
                    .map(|s| self.last[s].saturating_sub(self.n_rollback))
                    .min();
                self.written[*c] && self.cells[*c].seqs == t.seqs && keep_from.is_none_or(|p| self.cells[*c].pos < p)
            };
            let cell = current.filter(in_place).unwrap_or_else(|| self.take(t.seqs));
            self.cells[cell] = StateCell {
                pos: t.pos,
                seqs: t.seqs,
            };
            t.seqs.iter().for_each(|s| self.newest[s] = Some(cell as u32));
            self.written[cell] = true;
            self.from.push(current.map_or(-1, |c| c as i32));
            self.to.push(cell as i32);
        }
        Ok(())
    }

    /// Returns the cells that the tokens of the last placed ubatch read from and write to.
    pub fn moves(&self) -> (&[i32], &[i32]) {
        (&self.from, &self.to)
    }

    /// Reverts all placements since [`StateMemory::begin`]. Evicted checkpoints are lost.
    pub fn rollback(&mut self) {
        self.cells.copy_from_slice(&self.before.0);
        self.newest = self.before.1;
        for (cell, written) in self.cells.iter_mut().zip(&self.written) {
            if *written {
                *cell = StateCell::free();
            }
        }
    }

    /// Checks that these positions of a sequence can be removed.
    pub fn check_remove(&self, seq: usize, span: Span) -> Result<(), MemoryError> {
        let next = self.next_pos(seq);
        if span.from >= span.to.min(next) || (span.from <= 0 && span.to >= next) {
            return Ok(());
        }
        if span.to < next {
            return Err(MemoryError::Inseparable { seq });
        }
        self.check_checkpoint(seq, span.from)
    }

    /// Removes positions of a sequence; call [`StateMemory::check_remove`] first.
    pub fn remove(&mut self, seq: usize, span: Span) {
        if span.from < span.to.min(self.next_pos(seq)) {
            let is_removed = |c: &StateCell| c.pos >= span.from;
            self.remove_from(SeqSet::one(seq), is_removed);
        }
    }

    /// Checks that `to` can share these positions of `from`.
    pub fn check_copy(&self, from: usize, to: usize, span: Span) -> Result<(), MemoryError> {
        let (next, end) = (self.next_pos(from), span.to.min(self.next_pos(from)));
        if from == to || span.from >= end {
            return Ok(());
        }
        if self.next_pos(to) > 0 {
            return Err(MemoryError::Occupied { seq: to });
        }
        if span.from > 0 {
            return Err(MemoryError::Inseparable { seq: from });
        }
        if end < next {
            self.check_checkpoint(from, end)
        } else {
            Ok(())
        }
    }

    /// Makes `to` share positions of `from`; call [`StateMemory::check_copy`] first.
    pub fn copy(&mut self, from: usize, to: usize, span: Span) {
        for cell in &mut self.cells {
            if cell.seqs.contains(from) && cell.pos < span.to {
                cell.seqs = cell.seqs.union(SeqSet::one(to));
            }
        }
        self.find_newest();
    }

    /// Removes all sequences except `seq`.
    pub fn keep(&mut self, seq: usize) {
        self.remove_from(SeqSet::ALL.without(SeqSet::one(seq)), |_| true);
    }

    /// Checks that the positions of a sequence can be shifted.
    pub fn check_add(&self, seq: usize) -> Result<(), MemoryError> {
        match self.newest(seq) {
            Some(c) if self.cells[c].seqs != SeqSet::one(seq) => Err(MemoryError::Shared { seq }),
            _ => Ok(()),
        }
    }

    /// Shifts positions of a sequence. Its checkpoints are dropped, because the shift may move only some of
    /// their positions.
    pub fn add(&mut self, seq: usize, span: Span, delta: i32) {
        let Some(current) = self.newest(seq) else {
            return;
        };
        let pos = self.cells[current].pos;
        self.remove_from(SeqSet::one(seq), |c| c.pos != pos);
        if pos >= span.from && pos < span.to {
            self.cells[current] = match pos.checked_add(delta).filter(|&p| p >= 0) {
                Some(pos) => StateCell {
                    pos,
                    ..self.cells[current]
                },
                None => StateCell::free(),
            };
            self.find_newest();
        }
    }

    /// Clears all state cells.
    pub fn clear(&mut self) {
        self.cells.fill(StateCell::free());
        self.find_newest();
    }

    /// Sets the contents of a cell whose state has been written.
    pub fn put(&mut self, cell: Option<usize>, pos: i32, seqs: SeqSet) {
        if let Some(cell) = cell {
            self.cells[cell] = StateCell { pos, seqs };
            self.find_newest();
        }
    }

    /// Removes the sequences `leaving` and clears the target cells of a restore.
    pub fn vacate(&mut self, leaving: SeqSet, targets: &[Option<usize>]) {
        targets
            .iter()
            .flatten()
            .for_each(|&c| self.cells[c] = StateCell::free());
        self.remove_from(leaving, |_| true);
    }

    /// Returns the newest cells of these sequences, in ascending order.
    pub fn newest_of(&self, seqs: SeqSet) -> Vec<usize> {
        let wanted = |&c: &usize| self.continuing(c).intersects(seqs);
        (0..self.cells.len()).filter(wanted).collect()
    }

    /// Returns the sequences whose newest cell is `cell`.
    pub fn continuing(&self, cell: usize) -> SeqSet {
        let own = self.cells[cell].seqs.iter();
        SeqSet::of(own.filter(|&s| self.newest(s) == Some(cell)))
    }

    /// Returns the cells available for restoring a state once the sequences `leaving` are removed: free cells
    /// first, then checkpoints of others.
    pub fn replaceable(&self, leaving: SeqSet) -> Vec<usize> {
        let staying = |c: usize| self.continuing(c).without(leaving);
        let is_free = |c: usize| self.cells[c].seqs.without(leaving).is_empty();
        let mut cells: Vec<usize> = (0..self.cells.len()).filter(|&c| staying(c).is_empty()).collect();
        cells.sort_by_key(|&c| !is_free(c));
        cells
    }

    /// Removes sequences from the cells selected by `is_removed`.
    fn remove_from(&mut self, seqs: SeqSet, is_removed: impl Fn(&StateCell) -> bool) {
        for cell in self.cells.iter_mut().filter(|c| c.seqs.intersects(seqs)) {
            if is_removed(cell) {
                cell.seqs = cell.seqs.without(seqs);
                if cell.seqs.is_empty() {
                    *cell = StateCell::free();
                }
            }
        }
        self.find_newest();
    }

    /// Returns the newest cell of a sequence.
    fn newest(&self, seq: usize) -> Option<usize> {
        self.newest.get(seq).copied().flatten().map(|c| c as usize)
    }

    fn find_newest(&mut self) {
        self.newest = [None; MAX_SEQUENCES];
        for (c, cell) in self.cells.iter().enumerate() {
            for s in cell.seqs.iter() {
                let newest = &mut self.newest[s];
                if newest.is_none_or(|n| self.cells[n as usize].pos <= cell.pos) {
                    *newest = Some(c as u32);
                }
            }
        }
    }

    /// Checks that a sequence has a checkpoint to continue at `pos`.
    fn check_checkpoint(&self, seq: usize, pos: i32) -> Result<(), MemoryError> {
        let own = self.cells.iter().filter(|c| c.seqs.contains(seq));
        let positions = own.map(|c| c.pos as usize + 1);
        if positions.clone().any(|at| at == pos as usize) {
            return Ok(());
        }
        let mut available: Vec<usize> = positions.collect();
        available.sort_unstable();
        Err(MemoryError::StateForgotten { seq, pos, available })
    }

    /// Returns the newest cell common to all of these sequences.
    fn common_cell(&self, seqs: SeqSet) -> Result<Option<usize>, MemoryError> {
        let mut cells = seqs.iter().map(|s| (s, self.newest(s)));
        let Some((first, cell)) = cells.next() else {
            return Ok(None);
        };
        match cells.find(|&(_, c)| c != cell) {
            None => Ok(cell),
            Some((second, _)) => Err(MemoryError::StatesDiffer { first, second }),
        }
    }

    /// Returns a cell to write to: a free cell, or the least valuable checkpoint. A cell always exists,
    /// because every sequence has at most one newest cell now and at most one before the decode.
    fn take(&self, seqs: SeqSet) -> usize {
        let is_newest = |cells: &[StateCell], newest: &NewestCells, c: usize| {
            let mut own = cells[c].seqs.iter();
            own.any(|s| newest[s] == Some(c as u32))
        };
        let may_go =
            |&c: &usize| !is_newest(&self.cells, &self.newest, c) && !is_newest(&self.before.0, &self.before.1, c);
        let loss = |&c: &usize| {
            let cell = &self.cells[c];
            let foreign = !cell.seqs.intersects(seqs);
            (!cell.seqs.is_empty(), self.written[c], foreign, cell.pos)
        };
        let cell = (0..self.cells.len()).filter(may_go).min_by_key(loss);
        cell.expect("at least two cells per sequence are allocated")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(n_seq_max: usize, n_rollback: usize) -> StateMemory {
        let params = ContextParams {
            n_seq_max,
            n_rollback,
            ..ContextParams::default()
        };
        StateMemory::new(&[StateSpec { layer: 0, row: 1 }], &params)
    }

    fn tokens(list: &[(i32, u64)]) -> Vec<BatchToken> {
        let token = |&(pos, seqs)| BatchToken {
            token: 0,
            pos,
            seqs: SeqSet::of((0..8).filter(|s| seqs >> s & 1 == 1)),
            output: false,
            n_best: 0,
            media: None,
            axes: super::super::AxisPosition::default(),
        };
        list.iter().map(token).collect()
    }

    fn decode(m: &mut StateMemory, list: &[(i32, u64)]) -> Vec<(i32, i32)> {
        let tokens = tokens(list);
        m.begin(&tokens);
        m.place(&tokens).unwrap();
        m.from.iter().copied().zip(m.to.iter().copied()).collect()
    }

    fn tail(from: i32) -> Span {
        Span { from, to: i32::MAX }
    }

    #[test]
    fn decode_writes_to_new_cell() {
        let mut m = memory(1, 0);
        assert_eq!(decode(&mut m, &[(0, 1), (1, 1), (2, 1)]), [(-1, 0), (0, 0), (0, 0)]);
        assert_eq!(decode(&mut m, &[(3, 1), (4, 1)]), [(0, 1), (1, 1)]);
        assert_eq!(decode(&mut m, &[(5, 1)]), [(1, 0)], "the oldest state is evicted");
        assert_eq!(m.next_pos(0), 6);
    }

    #[test]
    fn rollback_restores_previous_state() {
        let mut m = memory(2, 1);
        decode(&mut m, &[(0, 1), (0, 2), (1, 1)]);
        let before = [0, 1].map(|s| m.cells[m.newest(s).unwrap()]);
        decode(&mut m, &[(2, 1), (3, 1), (1, 2)]);
        m.rollback();
        assert_eq!(before, [0, 1].map(|s| m.cells[m.newest(s).unwrap()]));
    }

    #[test]
    fn interleaved_sequences_use_separate_cells() {
        let mut m = memory(2, 0);
        assert_eq!(
            decode(&mut m, &[(0, 1), (0, 2), (1, 1), (1, 2)]),
            [(-1, 0), (-1, 1), (0, 0), (1, 1)]
        );
    }

    #[test]
    fn shared_states_diverge_on_write() {
        let mut m = memory(2, 0);
        decode(&mut m, &[(0, 1)]);
        m.check_copy(0, 1, tail(0)).unwrap();
        m.copy(0, 1, tail(0));
        assert_eq!(decode(&mut m, &[(1, 1), (1, 2), (2, 1)]), [(0, 1), (0, 2), (1, 1)]);
        let error = m.place(&tokens(&[(2, 3)])).unwrap_err();
        assert_eq!(error, MemoryError::StatesDiffer { first: 0, second: 1 });
        assert_eq!(m.check_copy(0, 1, tail(0)), Err(MemoryError::Occupied { seq: 1 }));
    }

    #[test]
    fn last_states_are_checkpointed() {
        let mut m = memory(1, 2);
        decode(&mut m, &[(0, 1), (1, 1), (2, 1), (3, 1), (4, 1)]);
        assert_eq!(
            m.check_remove(0, tail(2)),
            Err(MemoryError::StateForgotten {
                seq: 0,
                pos: 2,
                available: vec![3, 4, 5]
            })
        );
        assert_eq!(
            m.check_remove(0, Span { from: 1, to: 3 }),
            Err(MemoryError::Inseparable { seq: 0 })
        );
        m.check_remove(0, tail(3)).unwrap();
        m.remove(0, tail(3));
        assert_eq!((m.next_pos(0), m.n_used()), (3, 1));
        m.check_remove(0, tail(0)).unwrap();
        m.remove(0, tail(0));
        assert_eq!((m.next_pos(0), m.n_used()), (0, 0));
    }

    #[test]
    fn add_shifts_newest_state_only() {
        let mut m = memory(2, 1);
        decode(&mut m, &[(0, 1), (1, 1), (2, 1)]);
        m.check_add(0).unwrap();
        m.add(0, tail(1), -1);
        assert_eq!((m.next_pos(0), m.n_used()), (2, 1));
        m.copy(0, 1, tail(0));
        assert_eq!(m.check_add(0), Err(MemoryError::Shared { seq: 0 }));
    }

    #[test]
    fn take_always_finds_a_cell() {
        for n_rollback in 0..3 {
            let mut m = memory(3, n_rollback);
            let mut next = [0; 3];
            for step in 0..200usize {
                let seq = step * 7 % 3;
                let n = 1 + step % 5;
                let list: Vec<_> = (0..n).map(|i| (next[seq] + i as i32, 1 << seq)).collect();
                decode(&mut m, &list);
                next[seq] += n as i32;
                if step % 4 == 3 {
                    m.rollback();
                    next[seq] -= n as i32;
                }
                assert_eq!([0, 1, 2].map(|s| m.next_pos(s)), next);
            }
        }
    }
}
