//! Commands to the scheduler thread, executed between two steps: save, restore and erase slots, change
//! adapter scales, end reasoning.

use std::path::PathBuf;

use engine::context::StateError;
use tokio::sync::oneshot;

use super::batcher::Batcher;
use super::queue::Job;

/// Function that the scheduler thread runs between two steps.
pub type Command = Box<dyn FnOnce(&mut Batcher) + Send>;

/// State of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// True if a request is using the sequence.
    pub is_busy: bool,
    /// Number of tokens in the sequence.
    pub n_held: usize,
}

/// Error of a scheduler command.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// The slot id is out of range.
    #[error("invalid slot {id}: expected 0 to {}", .n - 1)]
    NoSlot {
        /// Requested slot.
        id: usize,
        /// Number of slots of the scheduler.
        n: usize,
    },
    /// A request is using the slot.
    #[error("slot {id} is busy")]
    Busy {
        /// Requested slot.
        id: usize,
    },
    /// The slot has no tokens.
    #[error("slot {id} is empty")]
    Empty {
        /// Requested slot.
        id: usize,
    },
    /// The adapter id is out of range.
    #[error("invalid adapter {id}: {n} adapters are loaded")]
    NoAdapter {
        /// Requested adapter.
        id: usize,
        /// Number of loaded adapters.
        n: usize,
    },
    /// A state file could not be read or written.
    #[error(transparent)]
    State(#[from] StateError),
    /// The scheduler thread has ended.
    #[error("the model has stopped")]
    Over,
}

/// Result of a scheduler command.
pub type Reply<T> = Result<T, CommandError>;

/// A change of adapter scales that waits for running sequences, which keep their scales.
pub struct PendingScales {
    scales: Vec<(usize, f32)>,
    done: oneshot::Sender<Reply<()>>,
}

impl Batcher {
    /// Returns the state of all sequences.
    pub fn slots(&self) -> Vec<Slot> {
        let slot = |id: usize| Slot {
            is_busy: self.sequences.is_busy(id),
            n_held: self.sequences.tokens_of(id).len(),
        };
        (0..self.sequences.len()).map(slot).collect()
    }

    /// Saves a sequence to a file; returns its number of tokens.
    pub fn save_slot(&mut self, id: usize, path: &PathBuf) -> Reply<usize> {
        self.check_slot(id)?;
        let tokens = self.sequences.tokens_of(id).to_vec();
        if tokens.is_empty() {
            return Err(CommandError::Empty { id });
        }
        self.context.save_seq_session(id, path, &tokens)?;
        Ok(tokens.len())
    }

    /// Restores a sequence from a file; returns its number of tokens.
    pub fn restore_slot(&mut self, id: usize, path: &PathBuf) -> Reply<usize> {
        self.check_idle(id)?;
        self.erase(id);
        let tokens = match self.context.load_seq_session(id, path) {
            Err(error) => match missing_cells(&error) {
                Some(n) if self.free_cells(n) => self.context.load_seq_session(id, path)?,
                _ => return Err(error.into()),
            },
            Ok(tokens) => tokens,
        };
        // A file from another program may be inconsistent.
        if tokens.len() != self.context.n_past(id) {
            self.erase(id);
            return Err(CommandError::Empty { id });
        }
        self.sequences.take(id);
        self.sequences.extend(id, &tokens);
        self.sequences.release(id);
        Ok(tokens.len())
    }

    /// Erases a sequence; returns the number of removed tokens.
    pub fn erase_slot(&mut self, id: usize) -> Reply<usize> {
        self.check_idle(id)?;
        let n = self.sequences.tokens_of(id).len();
        self.erase(id);
        Ok(n)
    }

    /// Ends the reasoning of a client's request. Returns whether it was reasoning; `None` if no such request
    /// is running.
    pub fn end_reasoning(&mut self, client: u64, id: &str) -> Option<bool> {
        let is_it = |job: &&mut Job| job.client == client && job.id.as_deref() == Some(id);
        let works = self.running.iter_mut().map(|running| &mut running.job);
        let found = works.chain(&mut self.waiting).filter(is_it);
        let ended = found.map(|job| job.generations.iter_mut().fold(false, |any, g| g.end_reasoning() | any));
        ended.reduce(|a, b| a | b)
    }

    /// Returns the scales of the adapters, in order.
    pub fn adapters(&self) -> Vec<f32> {
        self.context.adapters().iter().map(|(_, scale)| *scale).collect()
    }

    /// Sets adapter scales once running sequences have finished. Omitted adapters get scale 0.
    pub fn set_adapter_scales(&mut self, scales: Vec<(usize, f32)>, done: oneshot::Sender<Reply<()>>) {
        let n = self.context.adapters().len();
        if let Some(&(id, _)) = scales.iter().find(|(id, _)| *id >= n) {
            // The receiver may have been dropped.
            let _ = done.send(Err(CommandError::NoAdapter { id, n }));
            return;
        }
        self.pending_scales.push(PendingScales { scales, done });
    }

    /// Applies pending adapter changes if no sequence is running. Clears the cache, which was computed with
    /// the previous scales.
    pub fn apply_pending_scales(&mut self) {
        if !self.running.is_empty() {
            return;
        }
        for PendingScales { scales, done } in std::mem::take(&mut self.pending_scales) {
            let mut adapters = self.context.adapters().to_vec();
            adapters.iter_mut().for_each(|(_, scale)| *scale = 0.0);
            for (id, scale) in scales {
                adapters[id].1 = scale;
            }
            for id in 0..self.sequences.len() {
                self.erase(id);
            }
            let set = self.context.set_adapters(&adapters);
            let _ = done.send(set.map_err(|_| CommandError::Over));
        }
    }

    fn check_slot(&self, id: usize) -> Reply<()> {
        let n = self.sequences.len();
        if id < n {
            Ok(())
        } else {
            Err(CommandError::NoSlot { id, n })
        }
    }

    fn check_idle(&self, id: usize) -> Reply<()> {
        self.check_slot(id)?;
        if self.sequences.is_busy(id) {
            Err(CommandError::Busy { id })
        } else {
            Ok(())
        }
    }
}

/// Returns the number of cells that a state needs, if too few were free.
fn missing_cells(error: &StateError) -> Option<usize> {
    match error {
        StateError::NoRoom { needed, .. } => Some(*needed),
        StateError::InFile { error, .. } => missing_cells(error),
        _ => None,
    }
}
