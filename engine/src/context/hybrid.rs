//! Combined memory of a context: KV cache and recurrent states. Changes apply to both or to neither. The keys and
//! values of cross attention have no cells.

use std::sync::Arc;

use crate::backend::{Buffer, Device};
use crate::builder::{CacheView, MemorySpecs};
use crate::graph::BufferId;

use super::batch::BatchToken;
use super::cross::CrossMemory;
use super::memory::{KvMemory, Span};
use super::recurrent::StateMemory;
use super::{ContextError, ContextParams, MemoryError};

/// An error that can occur when placing a ubatch.
pub(super) enum PlaceError {
    /// The KV cache is full.
    Full {
        /// Number of cells in use.
        used: usize,
    },
    /// The tokens of a batch have incompatible recurrent states.
    States(MemoryError),
}

/// KV cache and recurrent states; either may be empty.
pub(super) struct Memory {
    pub kv: KvMemory,
    pub states: StateMemory,
    /// Keys and values of cross attention.
    pub cross: CrossMemory,
    view: CacheView,
}

/// Placement of the tokens of a decode. Dropping a transaction reverts the placement, unless it was committed.
pub(super) struct Transaction<'a> {
    memory: &'a mut Memory,
    is_committed: bool,
}

/// Memory after the cells of a ubatch were assigned, ready for building the graph of the ubatch.
#[derive(Clone, Copy)]
pub(super) struct Placed<'a> {
    memory: &'a Memory,
    has_cells: bool,
}

impl Transaction<'_> {
    /// Assigns cells to a ubatch. After an error, the transaction must be dropped.
    pub fn place(&mut self, tokens: &[BatchToken]) -> Result<Placed<'_>, PlaceError> {
        if !self.memory.kv.place(tokens) {
            let used = self.memory.n_used();
            return Err(PlaceError::Full { used });
        }
        self.memory.states.place(tokens).map_err(PlaceError::States)?;
        Ok(self.placed(true))
    }

    /// Prepares for a ubatch that attends only to itself and needs no cells.
    pub fn place_nothing(&mut self) -> Placed<'_> {
        self.placed(false)
    }

    /// Makes all placements permanent.
    pub fn commit(mut self) {
        self.memory.kv.commit();
        self.is_committed = true;
    }

    fn placed(&mut self, has_cells: bool) -> Placed<'_> {
        self.memory.set_view(false);
        Placed {
            memory: self.memory,
            has_cells,
        }
    }
}

impl Drop for Transaction<'_> {
    fn drop(&mut self) {
        if !self.is_committed {
            self.memory.kv.rollback();
            self.memory.states.rollback();
        }
    }
}

impl<'a> Placed<'a> {
    /// Returns the cache view that the graph is built over.
    pub fn view(self) -> &'a CacheView {
        &self.memory.view
    }

    /// Returns the memory with the cells of the ubatch; `None` if the ubatch has no cells.
    pub fn cells(self) -> Option<&'a Memory> {
        if self.has_cells { Some(self.memory) } else { None }
    }
}

impl Memory {
    /// Computes the layout for a model's graph. [`Memory::allocate`] allocates the buffers.
    pub fn new(specs: &MemorySpecs, n_ctx: usize, params: &ContextParams) -> Result<Memory, ContextError> {
        Ok(Memory {
            kv: KvMemory::new(&specs.kv, n_ctx, params)?,
            states: StateMemory::new(&specs.states, params),
            cross: CrossMemory::new(&specs.cross, n_ctx, params)?,
            view: CacheView::default(),
        })
    }

    /// Allocates buffers on the devices of the layers; `register` assigns their ids.
    pub fn allocate(
        &mut self,
        device_of: impl Fn(usize) -> Arc<dyn Device>,
        mut register: impl FnMut(Box<dyn Buffer>) -> BufferId,
    ) -> Result<(), ContextError> {
        self.kv.allocate(&device_of, &mut register)?;
        self.states.allocate(&device_of, &mut register)?;
        self.cross.allocate(&device_of, &mut register)?;
        self.view = CacheView {
            states: self.states.slots().to_vec(),
            n_state_cells: self.states.cells().len(),
            cross: self.cross.slots().to_vec(),
            n_cross_rows: self.cross.n_rows(),
            ..self.kv.view().clone()
        };
        Ok(())
    }

    /// Returns the cache view that graphs are built over.
    pub fn view(&self) -> &CacheView {
        &self.view
    }

    /// Sets the number of cells that graphs read: all cells for the worst case, else the cells in use.
    pub fn set_view(&mut self, worst_case: bool) {
        self.kv.set_view(worst_case);
        self.view.pools.copy_from_slice(&self.kv.view().pools);
    }

    /// Returns true if the KV cache size limits the number of positions.
    pub fn is_limited(&self) -> bool {
        !self.kv.pools().is_empty() || self.states.is_unused()
    }

    /// Returns the number of cells in use.
    pub fn n_used(&self) -> usize {
        if self.is_limited() {
            self.kv.n_used()
        } else {
            self.states.n_used()
        }
    }

    /// Returns the next position of `seq`; 0 for an empty or unknown sequence.
    pub fn next_pos(&self, seq: usize) -> i32 {
        if self.is_limited() {
            self.kv.next_pos(seq)
        } else {
            self.states.next_pos(seq)
        }
    }

    /// Starts a decode whose tokens are placed in ubatches.
    pub fn begin(&mut self, tokens: &[BatchToken]) -> Transaction<'_> {
        self.kv.begin();
        self.states.begin(tokens);
        Transaction {
            memory: self,
            is_committed: false,
        }
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

    /// Removes all sequences except `seq`.
    pub fn keep(&mut self, seq: usize) -> Result<(), MemoryError> {
        self.kv.keep(seq)?;
        self.states.keep(seq);
        Ok(())
    }

    /// Shifts the positions of a sequence.
    pub fn add(&mut self, seq: usize, span: Span, delta: i32) -> Result<(), MemoryError> {
        self.kv.check_seq(seq)?;
        self.states.check_add(seq)?;
        self.kv.add(seq, span, delta)?;
        self.states.add(seq, span, delta);
        Ok(())
    }

    /// Removes positions of a sequence and shifts the following positions down. On error, nothing changes.
    pub fn remove_and_shift(&mut self, seq: usize, removed: Span) -> Result<(), MemoryError> {
        self.kv.check_seq(seq)?;
        self.states.check_remove(seq, removed)?;
        self.kv.remove_and_shift(seq, removed)?;
        self.states.remove(seq, removed);
        Ok(())
    }

    /// Checks that positions can be removed from the middle of a sequence.
    pub fn check_shift(&self) -> Result<(), MemoryError> {
        if !self.states.is_unused() {
            return Err(MemoryError::Inseparable { seq: 0 });
        }
        self.kv.check_shift()
    }

    /// Clears all caches and states.
    pub fn clear(&mut self) {
        self.kv.clear();
        self.states.clear();
    }
}
