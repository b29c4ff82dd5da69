//! The whole memory of a context: keys and values of attention, states of recurrences. Changes are made in both or in neither.

use std::sync::Arc;

use crate::backend::{Buffer, Device};
use crate::builder::{CacheView, MemorySpecs};
use crate::graph::BufferId;

use super::batch::BatchToken;
use super::memory::{KvMemory, Span};
use super::recurrent::StateMemory;
use super::{ContextError, ContextParams, MemoryError};

/// Why a ubatch finds no place.
pub(super) enum PlaceError {
    /// No cells of KV memory are left.
    Full,
    /// Its tokens cannot be taken together.
    States(MemoryError),
}

/// KV memory and state memory; either may be empty.
pub(super) struct Memory {
    pub kv: KvMemory,
    pub states: StateMemory,
    view: CacheView,
}

impl Memory {
    /// Lays out the memory for a model's graph. Nothing is allocated until [`Memory::allocate`].
    pub fn new(specs: &MemorySpecs, n_ctx: usize, params: &ContextParams) -> Result<Memory, ContextError> {
        Ok(Memory {
            kv: KvMemory::new(&specs.kv, n_ctx, params)?,
            states: StateMemory::new(&specs.states, params),
            view: CacheView::default(),
        })
    }

    /// Allocates buffers on the devices of the layers; `register` gives them ids.
    pub fn allocate(
        &mut self,
        device_of: impl Fn(usize) -> Arc<dyn Device>,
        mut register: impl FnMut(Box<dyn Buffer>) -> BufferId,
    ) -> Result<(), ContextError> {
        self.kv.allocate(&device_of, &mut register)?;
        self.states.allocate(&device_of, &mut register)?;
        self.view = CacheView {
            states: self.states.slots().to_vec(),
            n_state_cells: self.states.cells().len(),
            ..self.kv.view().clone()
        };
        Ok(())
    }

    /// What graphs are built over.
    pub fn view(&self) -> &CacheView {
        &self.view
    }

    /// Sets how many cells graphs look at: all of them for the worst case, or as many as are in use.
    pub fn set_view(&mut self, worst_case: bool) {
        self.kv.set_view(worst_case);
        self.view.pools.copy_from_slice(&self.kv.view().pools);
    }

    /// True if the number of positions is limited by the cells of KV memory.
    pub fn is_limited(&self) -> bool {
        !self.kv.pools().is_empty() || self.states.is_unused()
    }

    /// Cells in use.
    pub fn n_used(&self) -> usize {
        if self.is_limited() {
            self.kv.n_used()
        } else {
            self.states.n_used()
        }
    }

    /// The position after the last one of `seq`; 0 for an empty or unknown sequence.
    pub fn next_pos(&self, seq: usize) -> i32 {
        if self.is_limited() {
            self.kv.next_pos(seq)
        } else {
            self.states.next_pos(seq)
        }
    }

    /// Starts a decode of tokens that will be placed in parts.
    pub fn begin(&mut self, tokens: &[BatchToken]) {
        self.kv.begin();
        self.states.begin(tokens);
    }

    /// Takes cells for a ubatch. On an error a rollback is due.
    pub fn place(&mut self, tokens: &[BatchToken]) -> Result<(), PlaceError> {
        if !self.kv.place(tokens) {
            return Err(PlaceError::Full);
        }
        self.states.place(tokens).map_err(PlaceError::States)
    }

    /// All placements since [`Memory::begin`] are final.
    pub fn commit(&mut self) {
        self.kv.commit();
    }

    /// Takes back all placements since [`Memory::begin`].
    pub fn rollback(&mut self) {
        self.kv.rollback();
        self.states.rollback();
    }

    /// Removes positions of a sequence.
    pub fn remove(&mut self, seq: usize, span: Span) -> Result<(), MemoryError> {
        self.kv.check_seq(seq)?;
        self.states.check_remove(seq, span)?;
        self.kv.remove(seq, span)?;
        self.states.remove(seq, span);
        Ok(())
    }

    /// Makes `to` share a range of positions of `from`.
    pub fn copy(&mut self, from: usize, to: usize, span: Span) -> Result<(), MemoryError> {
        self.kv.check_seq(from)?;
        self.kv.check_seq(to)?;
        self.states.check_copy(from, to, span)?;
        self.kv.copy(from, to, span)?;
        self.states.copy(from, to, span);
        Ok(())
    }

    /// Removes all sequences but one.
    pub fn keep(&mut self, seq: usize) -> Result<(), MemoryError> {
        self.kv.keep(seq)?;
        self.states.keep(seq);
        Ok(())
    }

    /// Moves positions of a sequence.
    pub fn add(&mut self, seq: usize, span: Span, delta: i32) -> Result<(), MemoryError> {
        self.kv.check_seq(seq)?;
        self.states.check_add(seq)?;
        self.kv.add(seq, span, delta)?;
        self.states.add(seq, span, delta);
        Ok(())
    }

    /// Removes positions of a sequence and moves what follows them down to take their place. On an error nothing is removed.
    pub fn close_up(&mut self, seq: usize, gone: Span) -> Result<(), MemoryError> {
        self.kv.check_seq(seq)?;
        self.states.check_remove(seq, gone)?;
        self.kv.close_up(seq, gone)?;
        self.states.remove(seq, gone);
        Ok(())
    }

    /// An error if positions can never be removed from the middle of a sequence.
    pub fn check_shift(&self) -> Result<(), MemoryError> {
        if !self.states.is_unused() {
            return Err(MemoryError::Inseparable { seq: 0 });
        }
        self.kv.check_shift()
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.kv.clear();
        self.states.clear();
    }
}
