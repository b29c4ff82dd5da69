//! Saving and restoring the memory of a context, for all sequences or one, as bytes or files.
//!
//! A state contains the positions, sequence sets, keys, and values of the cells in use, and the newest recurrent states
//! (as an additional pool). It excludes the logits of the last batch and encoder outputs; encode again before decoding
//! continues.
//!
//! A state can be restored into a context of a different size and into a partially filled cache, if its cells fit.
//! Model, cache types, RoPE settings, and active adapters must match. Everything is validated before the context
//! changes. `format.rs` describes the encoding.

mod error;
mod file;
mod format;

use std::io::Write;
use std::path::Path;

use crate::backend::{BackendError, MemoryMap};
use crate::builder::{KvSlot, KvSpec};
use crate::graph::{BufferSlice, Window};
use crate::model::Model;
use crate::vocab::Token;

use super::adapt::Adapters;
use super::batch::{MAX_SEQUENCES, SeqSet};
use super::cells::Cells;
use super::hybrid::Memory;
use super::memory::SavedCell;
use super::settings::Settings;

pub use error::StateError;
use format::{ChecksumWriter, Expected, Field, FieldValue, Identity, RowSizes, Run, Scope, VerifiedState};

/// Approximate chunk size for transferring rows, in bytes.
const PIECE: usize = 1 << 20;

/// Part of a context to save or restore.
#[derive(Clone, Copy)]
pub(super) enum Part {
    /// All sequences.
    All,
    /// State of a single sequence.
    One(usize),
}

/// Parts of a context needed for saving and restoring. No graph may be in flight and no key rotation pending.
pub(super) struct StateAccess<'a> {
    pub model: &'a Model,
    pub settings: &'a Settings,
    pub adapters: &'a Adapters,
    pub memory: &'a mut Memory,
    pub buffers: &'a mut MemoryMap,
}

impl StateAccess<'_> {
    /// Writes the state of `part` and its tokens to a file, which is replaced atomically.
    pub fn save_file(&self, part: Part, tokens: &[Token], path: &Path) -> Result<(), StateError> {
        file::replace(path, |out| self.save(part, tokens, out))?;
        tracing::debug!(path = %path.display(), n_tokens = tokens.len(), "saved a state");
        Ok(())
    }

    /// Restores the state of `part` from a file and returns the tokens saved with it.
    pub fn load_file(&mut self, part: Part, path: &Path) -> Result<Vec<Token>, StateError> {
        let bytes = file::read(path)?;
        let tokens = self.load(part, &bytes).map_err(|e| file::in_file(e, path))?;
        tracing::debug!(path = %path.display(), n_tokens = tokens.len(), "restored a state");
        Ok(tokens)
    }

    /// Writes the state of `part`, with its tokens.
    pub fn save(&self, part: Part, tokens: &[Token], out: &mut dyn Write) -> Result<(), StateError> {
        part.check(self.memory)?;
        let (pools, states) = (self.memory.kv.pools(), &self.memory.states);
        let mut cells: Vec<Vec<usize>> = pools.iter().map(|p| part.cells_of(p)).collect();
        let mut runs: Vec<Vec<Run>> = (pools.iter().zip(&cells))
            .map(|(p, cells)| runs_of(cells.iter().map(|&c| saved_cell(p, c)), part))
            .collect();
        if !states.is_unused() {
            let newest = states.newest_of(part.seqs());
            let contents = newest.iter().map(|&c| SavedCell {
                pos: states.cells()[c].pos,
                seqs: states.continuing(c),
                lag: 0,
            });
            runs.push(runs_of(contents, part));
            cells.push(newest);
        }
        let sizes = self.row_sizes();
        let row_bytes = sizes
            .iter()
            .map(|s| (cells[s.pool].len() * (s.key + s.value)) as u64)
            .sum();
        let head = format::head(part.scope(), &self.identity(part), tokens, &runs, row_bytes);

        let mut sink = ChecksumWriter::new(out);
        sink.write(&head)?;
        let mut piece = Vec::new();
        for ((k, v), size) in self.homes().zip(&sizes) {
            for (home, row) in [(k, size.key), (v, size.value)] {
                self.save_rows(&cells[size.pool], home, row, &mut piece, &mut sink)?;
            }
        }
        sink.finish()
    }

    /// Writes the rows of `cells` in a cache tensor; `row` is the row size in bytes.
    fn save_rows(
        &self,
        cells: &[usize],
        home: BufferSlice,
        row: usize,
        piece: &mut Vec<u8>,
        sink: &mut ChecksumWriter<'_>,
    ) -> Result<(), StateError> {
        let rows_at_once = (PIECE / row.max(1)).max(1);
        for together in cells.chunk_by(|a, b| a + 1 == *b) {
            for cells in together.chunks(rows_at_once) {
                piece.resize(cells.len() * row, 0);
                let offset = home.offset + cells[0] * row;
                self.buffers.read(BufferSlice { offset, ..home }, piece)?;
                sink.write(piece)?;
            }
        }
        Ok(())
    }

    /// Restores the state of `part` and returns the tokens saved with it.
    pub fn load(&mut self, part: Part, state: &[u8]) -> Result<Vec<Token>, StateError> {
        part.check(self.memory)?;
        let (identity, sizes) = (self.identity(part), self.row_sizes());
        let mut saved = format::parse(
            state,
            &Expected {
                scope: part.scope(),
                identity: &identity,
                n_vocab: self.model.base().n_vocab(),
                // A single sequence has id 0 in its state.
                n_seq_max: part.one().map_or(self.settings.params.n_seq_max, |_| 1),
                n_pools: self.memory.kv.pools().len() + usize::from(!self.memory.states.is_unused()),
                slots: &sizes,
            },
        )?;
        if let Some(seq) = part.one() {
            let runs = saved.pools.iter_mut().flatten();
            runs.for_each(|run| run.seqs = SeqSet::one(seq));
        }
        let target_cells = self.target_cells(&saved, part)?;
        // After this point, only a device can fail. If it does, the sequences are empty.
        self.memory.kv.vacate(part.seqs(), &target_cells);
        let n_pools = self.memory.kv.pools().len();
        let for_states = target_cells.get(n_pools).map_or(&[][..], Vec::as_slice);
        self.memory.states.vacate(part.seqs(), for_states);
        self.load_rows(&saved, &target_cells, &sizes)?;
        for (p, (runs, targets)) in saved.pools.iter().zip(&target_cells).enumerate() {
            let contents = cells(runs).zip(targets.iter().copied());
            if p < n_pools {
                self.memory.kv.occupy(p, contents);
            } else {
                contents.for_each(|(saved, cell)| self.memory.states.put(cell, saved.pos, saved.seqs));
            }
        }
        Ok(saved.tokens)
    }

    /// Returns the target cell of each saved cell, by pool; `None` for optional cells that do not fit.
    fn target_cells(&self, saved: &VerifiedState<'_>, part: Part) -> Result<Vec<Vec<Option<usize>>>, StateError> {
        let mut next_pos = [0; MAX_SEQUENCES];
        for cell in saved.pools.iter().flat_map(|runs| cells(runs)) {
            cell.seqs
                .iter()
                .for_each(|s| next_pos[s] = next_pos[s].max(cell.pos + 1));
        }
        let pools = self.memory.kv.pools().iter().zip(&saved.pools);
        let mut target_cells = pools
            .map(|(pool, runs)| {
                let free = self.memory.kv.free_cells(pool, part.seqs());
                assign_cells(pool, runs, &next_pos, free)
            })
            .collect::<Result<Vec<_>, _>>()?;
        if let Some(runs) = saved.pools.get(target_cells.len()) {
            let (needed, mut free) = (format::n_cells(runs), self.memory.states.replaceable(part.seqs()));
            if needed > free.len() {
                let (free, n_cells) = (free.len(), self.memory.states.cells().len());
                return Err(StateError::NoRoom { needed, free, n_cells });
            }
            free.truncate(needed);
            target_cells.push(free.into_iter().map(Some).collect());
        }
        Ok(target_cells)
    }

    fn load_rows(
        &mut self,
        saved: &VerifiedState<'_>,
        target_cells: &[Vec<Option<usize>>],
        sizes: &[RowSizes],
    ) -> Result<(), BackendError> {
        let homes: Vec<_> = self.homes().collect();
        for (((k, v), size), rows) in homes.into_iter().zip(sizes).zip(&saved.rows) {
            for (home, row, bytes) in [(k, size.key, rows.keys), (v, size.value, rows.values)] {
                let mut from = 0;
                // Consecutive target cells are written in one call.
                for together in target_cells[size.pool].chunk_by(|a, b| a.map(|a| a + 1) == *b) {
                    let to = from + together.len() * row;
                    if let Some(first) = together[0] {
                        let offset = home.offset + first * row;
                        self.buffers.write(BufferSlice { offset, ..home }, &bytes[from..to])?;
                    }
                    from = to;
                }
            }
        }
        Ok(())
    }

    /// Iterates over the locations of keys and values of each slot. A recurrent op is a slot with keys only.
    fn homes(&self) -> impl Iterator<Item = (BufferSlice, BufferSlice)> + '_ {
        let view = self.memory.view();
        let states = view.states.iter().map(|s| (s.home, s.home));
        let slots = view.slots.iter().zip(self.memory.kv.specs());
        let slots = slots.flat_map(|(slot, spec)| {
            // Rows of compressed groups follow the rows of tokens.
            let after_tokens = |home: BufferSlice, row: usize| BufferSlice {
                offset: home.offset + row * view.pools[slot.pool].n_cells,
                ..home
            };
            let groups = slot.compressed.map(|_| {
                let (key, value) = slot_row_bytes(slot, spec);
                (after_tokens(slot.k, key), after_tokens(slot.v, value))
            });
            [Some((slot.k, slot.v)), groups].into_iter().flatten()
        });
        slots.chain(states)
    }

    /// Returns the row sizes of keys and values of each slot in bytes.
    fn row_sizes(&self) -> Vec<RowSizes> {
        let states = &self.memory.states;
        let slots = self.memory.view().slots.iter().zip(self.memory.kv.specs());
        slots
            .flat_map(|(slot, spec)| {
                let (key, value) = slot_row_bytes(slot, spec);
                let of = move |pool| RowSizes { pool, key, value };
                [Some(slot.pool), slot.compressed].into_iter().flatten().map(of)
            })
            .chain((0..states.specs().len()).map(|i| RowSizes {
                pool: self.memory.kv.pools().len(),
                key: states.row_bytes(i),
                value: 0,
            }))
            .collect()
    }

    /// Returns everything that a state must have in common with this context.
    fn identity(&self, part: Part) -> Identity {
        use FieldValue::{Adapters, Count, Digest, Float, Type};
        let model = self.model.fingerprint();
        let mut fields = Vec::new();
        let mut add = |of_model, what, index, value| {
            fields.push(Field {
                of_model,
                what,
                index,
                value,
            });
        };
        add(true, "hyperparameters (digest)", None, Digest(model.hparams));
        add(true, "tensor table (digest)", None, Digest(model.tensors));
        add(true, "weights (digest)", None, Digest(model.weights));
        let rope = self.settings.rope;
        add(false, "RoPE base frequency", None, Float(rope.freq_base));
        add(false, "RoPE position scale", None, Float(rope.freq_scale));
        add(false, "YaRN extrapolation factor", None, Float(rope.ext_factor));
        add(false, "YaRN magnitude factor", None, Float(rope.attn_factor));
        add(false, "YaRN beta_fast", None, Float(rope.beta_fast));
        add(false, "YaRN beta_slow", None, Float(rope.beta_slow));
        add(false, "YaRN original context length", None, Count(rope.n_ctx_orig));
        add(false, "adapters", None, Adapters(self.adapters.digest(part.one())));
        let view = self.memory.view();
        add(true, "number of cache pools", None, Count(view.pools.len()));
        for (i, pool) in self.memory.kv.pools().iter().enumerate() {
            let (kind, n) = window_code(pool.window);
            add(true, "window type of pool", Some(i), Count(kind));
            add(true, "window size of pool", Some(i), Count(n));
        }
        add(true, "number of attention calls", None, Count(view.slots.len()));
        for (slot, spec) in view.slots.iter().zip(self.memory.kv.specs()) {
            let layer = Some(spec.layer);
            add(true, "cache pool of layer", layer, Count(slot.pool));
            if let Some(pool) = slot.compressed {
                add(true, "compressed cache pool of layer", layer, Count(pool));
            }
            add(true, "key row size of layer", layer, Count(spec.k_row));
            add(true, "value row size of layer", layer, Count(spec.v_row));
            add(false, "key type of layer", layer, Type(slot.type_k));
            add(false, "value type of layer", layer, Type(slot.type_v));
        }
        for spec in self.memory.states.specs() {
            add(true, "recurrent state size of layer", Some(spec.layer), Count(spec.row));
        }
        let arch = model.arch;
        Identity { arch, fields }
    }
}

impl Part {
    fn scope(self) -> Scope {
        match self {
            Part::All => Scope::Context,
            Part::One(_) => Scope::Sequence,
        }
    }

    fn one(self) -> Option<usize> {
        match self {
            Part::All => None,
            Part::One(seq) => Some(seq),
        }
    }

    fn seqs(self) -> SeqSet {
        self.one().map_or(SeqSet::ALL, SeqSet::one)
    }

    fn check(self, memory: &Memory) -> Result<(), StateError> {
        self.one().map_or(Ok(()), |seq| memory.kv.check_seq(seq))?;
        Ok(())
    }

    /// Returns the cells in use, in ascending order.
    fn cells_of(self, pool: &Cells) -> Vec<usize> {
        let wanted = self.seqs();
        (0..pool.top()).filter(|&c| pool.seqs()[c].intersects(wanted)).collect()
    }
}

/// Returns the sizes of a key row and a value row in bytes.
fn slot_row_bytes(slot: &KvSlot, spec: &KvSpec) -> (usize, usize) {
    let bytes = |ty: kernels::GgmlType, n: usize| n / ty.block_size() * ty.block_bytes();
    (bytes(slot.type_k, spec.k_row), bytes(slot.type_v, spec.v_row))
}

/// Encodes cells as runs. A single sequence gets id 0.
fn runs_of(cells: impl Iterator<Item = SavedCell>, part: Part) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for SavedCell { pos, seqs, lag } in cells {
        let seqs = part.one().map_or(seqs, |_| SeqSet::one(0));
        match runs.last_mut() {
            Some(run)
                if (run.seqs, run.lag) == (seqs, lag) && i64::from(run.pos) + i64::from(run.len) == i64::from(pos) =>
            {
                run.len += 1;
            }
            _ => runs.push(Run { pos, lag, len: 1, seqs }),
        }
    }
    runs
}

/// Returns the contents of a cell.
fn saved_cell(pool: &Cells, cell: usize) -> SavedCell {
    SavedCell {
        pos: pool.positions()[cell],
        seqs: pool.seqs()[cell],
        lag: pool.lags()[cell],
    }
}

/// Iterates over the contents of each cell in the runs.
fn cells(runs: &[Run]) -> impl Iterator<Item = SavedCell> {
    let each = |run: &Run| {
        let (seqs, lag) = (run.seqs, run.lag);
        (run.pos..run.pos + run.len as i32).map(move |pos| SavedCell { pos, seqs, lag })
    };
    runs.iter().flat_map(each)
}

/// Assigns target cells in a pool. Cells hidden from all queries are restored only to empty cells, latest
/// positions first; they are useful only if the sequence is truncated later.
fn assign_cells(
    pool: &Cells,
    runs: &[Run],
    next_pos: &[i32; MAX_SEQUENCES],
    free: super::memory::FreeCells,
) -> Result<Vec<Option<usize>>, StateError> {
    let stored: Vec<SavedCell> = cells(runs).collect();
    let is_kept = |cell: &SavedCell| !pool.is_hidden(cell.pos, cell.seqs, next_pos);
    let mut kept: Vec<bool> = stored.iter().map(is_kept).collect();
    let needed = kept.iter().filter(|&&k| k).count();
    let (n_empty, n_free) = (free.empty.len(), free.empty.len() + free.hidden.len());
    if needed > n_free {
        return Err(StateError::NoRoom {
            needed,
            free: n_free,
            n_cells: pool.len(),
        });
    }
    let mut optional: Vec<usize> = (0..stored.len()).filter(|&i| !kept[i]).collect();
    optional.sort_by_key(|&i| std::cmp::Reverse(stored[i].pos));
    optional.truncate(n_empty.saturating_sub(needed));
    optional.iter().for_each(|&i| kept[i] = true);

    let overwritten = needed.saturating_sub(n_empty);
    let mut targets = free.empty;
    targets.extend(&free.hidden[..overwritten]);
    let mut targets = targets.into_iter();
    Ok(kept
        .into_iter()
        .map(|k| if k { targets.next() } else { None })
        .collect())
}

/// Returns a code for the window type, and the window size.
fn window_code(window: Window) -> (usize, usize) {
    match window {
        Window::None => (0, 0),
        Window::Sliding(n) => (1, n),
        Window::Chunked(n) => (2, n),
        Window::Symmetric(n) => (3, n),
        Window::Compressed(n) => (4, n),
    }
}
