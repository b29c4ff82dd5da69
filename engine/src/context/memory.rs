//! KV cache: pools of cells, and the tensors of their keys and values.

use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use kernels::GgmlType;

use crate::backend::{BackendError, Buffer, BufferType, Device};
use crate::builder::{CELL_STEP, CacheView, KeyPosition, KvSpec, MemorySpecs};
use crate::graph::{BufferId, BufferSlice, PAGE, Window};

use super::axes::Lags;
use super::batch::{BatchToken, MAX_SEQUENCES, SeqSet};
use super::cells::{CellUndo, Cells, EMPTY, Queries, lowest_queries};
use super::{ContextError, ContextParams, MemoryError};

/// KV cache of all attention calls of a model, with the positions and sequences of its cells.
pub struct KvMemory {
    pools: Vec<Cells>,
    /// Requirements of each slot, in graph order.
    specs: Vec<KvSpec>,
    view: CacheView,
    /// Next position of each sequence, by sequence id.
    next_pos: [i32; MAX_SEQUENCES],
    /// Positions along the axes, by sequence.
    lags: Lags,
    /// Next position of each sequence before the current decode.
    before: [i32; MAX_SEQUENCES],
    /// Positions along the axes before the current decode.
    lags_before: Lags,
    journal: Vec<(usize, CellUndo)>,
    undo: Vec<CellUndo>,
    /// Cell of each token of the current ubatch, by pool.
    cells: Vec<Vec<i64>>,
    n_seq_max: usize,
    /// Requested context length, for error messages.
    n_ctx: usize,
    n_bytes: usize,
}

/// Half-open range of positions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub from: i32,
    pub to: i32,
}

impl Span {
    pub fn of(range: impl RangeBounds<usize>) -> Span {
        let clamp = |n: usize| i32::try_from(n).unwrap_or(i32::MAX);
        let from = match range.start_bound() {
            Bound::Included(&n) => clamp(n),
            Bound::Excluded(&n) => clamp(n).saturating_add(1),
            Bound::Unbounded => 0,
        };
        let to = match range.end_bound() {
            Bound::Included(&n) => clamp(n).saturating_add(1),
            Bound::Excluded(&n) => clamp(n),
            Bound::Unbounded => i32::MAX,
        };
        Span { from, to }
    }
}

/// Contents of a cell in a saved state.
#[derive(Clone, Copy, Debug)]
pub(super) struct SavedCell {
    pub pos: i32,
    pub seqs: SeqSet,
    /// Distance of the following token's positions along the axes to its position in the sequence.
    pub lag: i32,
}

/// Cells available for restoring a state, in ascending order.
pub(super) struct FreeCells {
    /// Empty cells, starting with the cells of empty pages.
    pub empty: Vec<usize>,
    /// Cells that are hidden from all queries.
    pub hidden: Vec<usize>,
}

impl KvMemory {
    /// Computes the layout for a model's attention calls. [`KvMemory::allocate`] allocates the buffers.
    pub(super) fn new(specs: &[KvSpec], n_ctx: usize, params: &ContextParams) -> Result<KvMemory, ContextError> {
        for spec in specs {
            check_type(params.type_k, spec.k_row / spec.n_head_kv.max(1))?;
            check_type(params.type_k, spec.v_in_k)?;
            check_type(params.type_v, spec.v_row / spec.n_head_kv.max(1))?;
        }
        let kept = MemorySpecs {
            kv: specs.to_vec(),
            cross: Vec::new(),
            states: Vec::new(),
        };
        let (view, windows) = params.memory(n_ctx).cache_view(&kept);
        let pools = view.pools.iter().zip(windows);
        let pools: Vec<Cells> = pools
            .map(|(pool, window)| Cells::new(pool.n_cells, params.n_seq_max, window))
            .collect();
        let n_pools = pools.len();
        Ok(KvMemory {
            cells: pools.iter().map(|_| Vec::with_capacity(params.n_ubatch)).collect(),
            pools,
            specs: kept.kv,
            view,
            next_pos: [0; MAX_SEQUENCES],
            lags: Lags::default(),
            before: [0; MAX_SEQUENCES],
            lags_before: Lags::default(),
            journal: Vec::with_capacity(n_pools * params.n_batch),
            undo: Vec::with_capacity(params.n_ubatch),
            n_seq_max: params.n_seq_max,
            n_ctx,
            n_bytes: 0,
        })
    }

    /// Allocates one buffer per device for keys and values; `register` assigns its id.
    pub(super) fn allocate(
        &mut self,
        device_of: impl Fn(usize) -> Arc<dyn Device>,
        mut register: impl FnMut(Box<dyn Buffer>) -> BufferId,
    ) -> Result<(), ContextError> {
        for (ty, slots) in by_buffer_type(self.specs.iter().map(|s| device_of(s.layer).buffer_type())) {
            self.allocate_slots(&slots, ty.as_ref(), &mut register)?;
        }
        // Allocate cells after the much larger keys and values, so that an oversized context fails before any
        // page is touched.
        for pool in &mut self.pools {
            if !pool.allocate() {
                return Err(ContextError::KvMemory {
                    n_ctx: self.n_ctx,
                    bytes: pool.n_bytes(),
                    buffer_type: "the host".to_owned(),
                });
            }
        }
        Ok(())
    }

    fn allocate_slots(
        &mut self,
        slots: &[usize],
        buffer_type: &dyn BufferType,
        register: &mut impl FnMut(Box<dyn Buffer>) -> BufferId,
    ) -> Result<(), ContextError> {
        let align = buffer_type.alignment();
        let mut size = 0usize;
        let mut take = |ty: GgmlType, row: usize, n_cells: usize| {
            let offset = size.checked_next_multiple_of(align).unwrap_or(usize::MAX);
            // Saturates on overflow; the allocation then fails with an out-of-memory error.
            let bytes = ty.row_bytes(row).unwrap_or(usize::MAX).saturating_mul(n_cells);
            size = offset.saturating_add(bytes);
            offset
        };
        let mut offsets = Vec::new();
        for &i in slots {
            let (slot, spec) = (&self.view.slots[i], &self.specs[i]);
            let n_cells = |pool: usize| self.view.pools[pool].n_cells;
            let n = n_cells(slot.pool).saturating_add(slot.compressed.map_or(0, n_cells));
            offsets.push((take(slot.type_k, spec.k_row, n), take(slot.type_v, spec.v_row, n)));
        }
        if size == 0 {
            return Ok(());
        }
        let buffer = buffer_type.allocate(size).map_err(|e| no_room(e, self.n_ctx))?;
        let id = register(buffer);
        self.n_bytes += size;
        for (&i, (k, v)) in slots.iter().zip(offsets) {
            self.view.slots[i].k = BufferSlice { buffer: id, offset: k };
            self.view.slots[i].v = BufferSlice { buffer: id, offset: v };
        }
        Ok(())
    }

    /// Returns the cache view that graphs are built over.
    pub(super) fn view(&self) -> &CacheView {
        &self.view
    }

    /// Sets the number of cells that graphs read: all cells for the worst case, else the cells in use.
    pub(super) fn set_view(&mut self, worst_case: bool) {
        for (pool, view) in self.pools.iter().zip(&mut self.view.pools) {
            let used = pool.top().next_multiple_of(CELL_STEP).max(CELL_STEP);
            view.n_kv = if worst_case {
                view.n_cells
            } else {
                used.min(view.n_cells)
            };
        }
    }

    /// Returns the requirements of each slot.
    pub(super) fn specs(&self) -> &[KvSpec] {
        &self.specs
    }

    /// Returns the size of keys and values in bytes.
    pub fn n_bytes(&self) -> usize {
        self.n_bytes
    }

    /// Returns the pools of cells.
    pub(super) fn pools(&self) -> &[Cells] {
        &self.pools
    }

    /// Returns the number of cached tokens, the maximum over all pools.
    pub fn n_used(&self) -> usize {
        let tokens = |p: &Cells| p.n_used().saturating_mul(p.n_tokens_each());
        self.pools.iter().map(tokens).max().unwrap_or(0)
    }

    /// Returns the maximum length of a cell list passed to a graph.
    pub(super) fn longest_list(&self) -> usize {
        let n_cells = |pool: usize| self.pools[pool].len();
        let slots = self.view.slots.iter();
        let lengths = slots.map(|s| n_cells(s.pool).saturating_add(s.compressed.map_or(0, n_cells)));
        lengths.max().unwrap_or(0)
    }

    /// Returns the next position of `seq`; 0 for an empty or unknown sequence.
    pub fn next_pos(&self, seq: usize) -> i32 {
        self.next_pos.get(seq).copied().unwrap_or(0)
    }

    /// Returns the positions along the axes, by sequence.
    pub(super) fn lags(&self) -> &Lags {
        &self.lags
    }

    /// Starts a decode. Until it is committed, cells needed to restore the previous state are preserved.
    pub(super) fn begin(&mut self) {
        self.before = self.next_pos;
        self.lags_before = self.lags;
    }

    /// Assigns cells to a ubatch in every pool. Returns false without changes if a pool is full.
    pub(super) fn place(&mut self, tokens: &[BatchToken]) -> bool {
        let now = lowest_queries(tokens, &self.next_pos);
        let queries = Queries {
            before: &self.before,
            now: &now,
        };
        let mark = self.journal.len();
        for p in 0..self.pools.len() {
            self.cells[p].clear();
            self.cells[p].resize(tokens.len(), 0);
            let placed = self.pools[p].place(tokens, queries, &mut self.cells[p], &mut self.undo);
            self.journal.extend(self.undo.drain(..).map(|u| (p, u)));
            if !placed {
                self.undo_to(mark);
                return false;
            }
        }
        for t in tokens {
            self.lags.set(t.seqs, t.axes.lag);
            for s in t.seqs.iter() {
                self.next_pos[s] = self.next_pos[s].max(t.pos + 1);
            }
        }
        true
    }

    /// Returns the cell of each token of the last placed ubatch.
    pub(super) fn cells_of(&self, pool: usize) -> &[i64] {
        &self.cells[pool]
    }

    /// Makes all placements since [`KvMemory::begin`] permanent.
    pub(super) fn commit(&mut self) {
        self.journal.clear();
    }

    /// Reverts all placements since [`KvMemory::begin`].
    pub(super) fn rollback(&mut self) {
        self.undo_to(0);
        self.next_pos = self.before;
        self.lags = self.lags_before;
    }

    /// Removes positions of a sequence.
    pub(super) fn remove(&mut self, seq: usize, span: Span) -> Result<(), MemoryError> {
        self.check_seq(seq)?;
        // After a truncation, the window starts at an earlier position; all positions in it must still be cached.
        if span.from > 0 && span.to >= self.next_pos[seq] && span.from < self.next_pos[seq] {
            for pool in &self.pools {
                let Some(need) = window_start(pool.window, span.from) else {
                    continue;
                };
                let have = pool.count(seq, need, span.from);
                if have < (span.from - need) as usize && self.was_recycled(pool, seq, need) {
                    return Err(MemoryError::WindowForgotten { seq, pos: span.from });
                }
            }
        }
        for pool in &mut self.pools {
            pool.remove(seq, span.from, span.to);
        }
        self.recount();
        Ok(())
    }

    /// Makes `to` share the cells of `from` in a range of positions.
    pub(super) fn copy(&mut self, from: usize, to: usize, span: Span) -> Result<(), MemoryError> {
        self.check_seq(from)?;
        self.check_seq(to)?;
        for pool in &mut self.pools {
            pool.copy(from, to, span.from, span.to);
        }
        self.recount();
        Ok(())
    }

    /// Removes all sequences except `seq`.
    pub(super) fn keep(&mut self, seq: usize) -> Result<(), MemoryError> {
        self.check_seq(seq)?;
        self.pools.iter_mut().for_each(|p| p.keep(seq));
        self.recount();
        Ok(())
    }

    /// Shifts positions of a sequence; the keys are rotated before the next decode.
    pub(super) fn add(&mut self, seq: usize, span: Span, delta: i32) -> Result<(), MemoryError> {
        self.check_add(seq, span)?;
        self.pools
            .iter_mut()
            .for_each(|p| p.add(seq, span.from, span.to, delta));
        self.recount();
        Ok(())
    }

    /// Removes positions of a sequence and shifts the following positions down. On error, nothing changes.
    pub(super) fn remove_and_shift(&mut self, seq: usize, removed: Span) -> Result<(), MemoryError> {
        let rest = Span {
            from: removed.to,
            to: i32::MAX,
        };
        self.check_add(seq, rest)?;
        self.remove(seq, removed)?;
        self.add(seq, rest, removed.from - removed.to)
    }

    /// Checks that the keys of all layers can be shifted.
    pub(super) fn check_shift(&self) -> Result<(), MemoryError> {
        match self.specs.iter().find(|s| s.key_position == KeyPosition::Fixed) {
            Some(spec) => Err(MemoryError::NotShiftable { layer: spec.layer }),
            None => Ok(()),
        }
    }

    /// Checks that these positions can be shifted.
    fn check_add(&self, seq: usize, span: Span) -> Result<(), MemoryError> {
        self.check_seq(seq)?;
        self.check_shift()?;
        if self.pools.iter().any(|p| p.shares(seq, span.from, span.to)) {
            return Err(MemoryError::Shared { seq });
        }
        Ok(())
    }

    /// Clears all cells of all pools.
    pub(super) fn clear(&mut self) {
        self.pools.iter_mut().for_each(Cells::clear);
        self.recount();
    }

    /// Returns the cells of a pool that are free once the sequences `leaving` are removed.
    pub(super) fn free_cells(&self, pool: &Cells, leaving: SeqSet) -> FreeCells {
        let mut free = FreeCells {
            empty: Vec::new(),
            hidden: Vec::new(),
        };
        for (cell, (&pos, &seqs)) in pool.positions().iter().zip(pool.seqs()).enumerate() {
            let staying = seqs.without(leaving);
            if staying.is_empty() {
                free.empty.push(cell);
            } else if pool.is_hidden(pos, staying, &self.next_pos) {
                free.hidden.push(cell);
            }
        }
        // Empty pages first, so that restored sequences need not share pages with others.
        let is_empty = |cells: &[usize]| cells.len() == PAGE.min(pool.len() - cells[0] / PAGE * PAGE);
        let by_page = || free.empty.chunk_by(|a, b| a / PAGE == b / PAGE);
        let of_empty_pages = by_page().filter(|cells| is_empty(cells));
        let of_others = by_page().filter(|cells| !is_empty(cells));
        free.empty = of_empty_pages.chain(of_others).flatten().copied().collect();
        free
    }

    /// Removes the sequences `leaving` and clears the target cells of a restore.
    pub(super) fn vacate(&mut self, leaving: SeqSet, targets: &[Vec<Option<usize>>]) {
        for (pool, targets) in self.pools.iter_mut().zip(targets) {
            pool.remove_all(leaving);
            for &cell in targets.iter().flatten() {
                pool.put(cell, EMPTY, SeqSet::default());
            }
        }
        self.recount();
    }

    /// Sets the contents of cells whose rows have been written.
    pub(super) fn occupy(&mut self, pool: usize, cells: impl Iterator<Item = (SavedCell, Option<usize>)>) {
        for (saved, cell) in cells {
            if let Some(cell) = cell {
                self.pools[pool].put(cell, saved.pos, saved.seqs);
                self.pools[pool].set_lag(cell, saved.lag);
            }
        }
        self.pools[pool].resume();
        self.recount();
    }

    pub(super) fn shift_done(&mut self) {
        self.pools.iter_mut().for_each(Cells::shift_done);
    }

    /// Returns true if some keys have a pending rotation.
    pub(super) fn needs_shift(&self) -> bool {
        self.pools.iter().any(|p| p.pending_shift().is_some())
    }

    /// Checks that a sequence id is in range.
    pub(super) fn check_seq(&self, seq: usize) -> Result<(), MemoryError> {
        if seq < self.n_seq_max {
            return Ok(());
        }
        Err(MemoryError::Sequence {
            seq,
            n_seq_max: self.n_seq_max,
        })
    }

    /// Returns true if a pool lacks positions at or after `need` because their cells were reused, rather than because
    /// they were removed from the sequence.
    fn was_recycled(&self, pool: &Cells, seq: usize, need: i32) -> bool {
        let kept = pool.range(seq).map_or(i32::MAX, |(lo, _)| lo);
        let first = self
            .pools
            .iter()
            .filter_map(|p| p.range(seq))
            .map(|(lo, _)| lo)
            .min()
            .unwrap_or(i32::MAX);
        // If all pools are windowed, the sequence started at 0.
        let began = if self.pools.iter().all(|p| p.window != Window::None) {
            0
        } else {
            first
        };
        kept > need.max(began)
    }

    fn undo_to(&mut self, mark: usize) {
        while self.journal.len() > mark {
            if let Some((p, undo)) = self.journal.pop() {
                self.pools[p].restore(undo);
            }
        }
    }

    fn recount(&mut self) {
        self.next_pos = [0; MAX_SEQUENCES];
        self.lags = Lags::default();
        for pool in &self.pools {
            pool.raise_next(&mut self.next_pos, &mut self.lags);
        }
    }
}

/// Groups slots by buffer type, in order of first occurrence.
pub(super) fn by_buffer_type(
    types: impl Iterator<Item = Arc<dyn BufferType>>,
) -> Vec<(Arc<dyn BufferType>, Vec<usize>)> {
    let mut found: Vec<(Arc<dyn BufferType>, Vec<usize>)> = Vec::new();
    for (i, ty) in types.enumerate() {
        match found.iter_mut().find(|(known, _)| known.name() == ty.name()) {
            Some((_, slots)) => slots.push(i),
            None => found.push((ty, vec![i])),
        }
    }
    found
}

/// Returns the lowest position visible at `pos` through a causal window; `None` without a window.
fn window_start(window: Window, pos: i32) -> Option<i32> {
    match window {
        Window::Sliding(n) => Some((pos + 1).saturating_sub_unsigned(n as u32).max(0)),
        Window::Chunked(n) => Some(pos / n as i32 * n as i32),
        Window::None | Window::Symmetric(_) | Window::Compressed(_) => None,
    }
}

/// Returns the error of an allocation for a context of this length.
pub(super) fn no_room(error: BackendError, n_ctx: usize) -> ContextError {
    match error {
        BackendError::OutOfMemory { buffer_type, bytes } => ContextError::KvMemory {
            n_ctx,
            bytes,
            buffer_type,
        },
        error => error.into(),
    }
}

/// Checks that rows of heads can be stored as this type.
pub(super) fn check_type(ty: GgmlType, head_dim: usize) -> Result<(), ContextError> {
    let reason = if !kernels::can_quantize(ty) || !kernels::can_dequantize(ty) {
        "the type has no runtime quantizer"
    } else if !head_dim.is_multiple_of(ty.block_size()) {
        "the head size is not a multiple of the block size"
    } else {
        return Ok(());
    };
    Err(ContextError::KvType { ty, head_dim, reason })
}

#[cfg(test)]
mod tests {
    use super::super::AxisPosition;
    use super::*;

    /// Decodes random batches of several sequences, consecutive and interleaved. `window_cells` cells always
    /// suffice, and windows are intact after successful and failed decodes.
    #[test]
    fn windowed_pool_fits_every_decode() {
        const WINDOW: usize = 7;
        for (n_seq_max, n_batch, n_ubatch) in [(1, 40, 4), (1, 5, 5), (3, 60, 6), (4, 16, 16), (5, 200, 3)] {
            let params = ContextParams {
                n_seq_max,
                n_batch,
                n_ubatch,
                ..ContextParams::default()
            };
            for window in [Window::Sliding(WINDOW), Window::Chunked(WINDOW)] {
                let n_cells = params.memory(4096).window_cells(WINDOW);
                let mut pool = Cells::new(n_cells, n_seq_max, window);
                assert!(pool.allocate());
                let mut next_pos = [0; MAX_SEQUENCES];
                for step in 0..60usize {
                    let (before, mut now, mut undo) = (next_pos, next_pos, Vec::new());
                    let run = 1 + step % 9;
                    let mut batch: Vec<BatchToken> = Vec::new();
                    for i in 0..n_batch {
                        let seq = (i / run + step) % n_seq_max;
                        let (token, seqs) = (0, SeqSet::one(seq));
                        batch.push(BatchToken {
                            token,
                            pos: next_pos[seq],
                            seqs,
                            output: false,
                            n_best: 0,
                            media: None,
                            axes: AxisPosition::default(),
                        });
                        next_pos[seq] += 1;
                    }
                    for ubatch in batch.chunks(n_ubatch) {
                        let queries = Queries {
                            before: &before,
                            now: &now,
                        };
                        let placed = pool.place(ubatch, queries, &mut vec![0; ubatch.len()], &mut undo);
                        assert!(placed, "{window:?} of {params:?} in step {step}");
                        ubatch.iter().for_each(|t| now[t.seqs.first().unwrap()] = t.pos + 1);
                    }
                    if step % 3 == 1 {
                        undo.into_iter().rev().for_each(|u| pool.restore(u));
                        next_pos = before;
                    }
                    for (seq, &next) in next_pos[..n_seq_max].iter().enumerate() {
                        let from = window_start(window, next).unwrap();
                        assert_eq!(pool.count(seq, from, next), (next - from) as usize, "step {step}");
                    }
                }
            }
        }
    }
}
