//! Memory of the scheduler: the context, and the tokens that it holds in each sequence. Cached sequences are
//! evicted when their cells are needed.

use std::path::Path;
use std::sync::Arc;

use engine::context::{Context, MemoryError, ScaledAdapter, SetAdaptersError, StateError};

use super::command::{CommandError, CommandResult, Slot};
use super::sequences::{CacheKey, Match, Sequences};
use crate::metrics::Gauges;

/// Maximum number of prompt tokens that a sequence may lose if a similar prompt overwrites it.
const MAX_LOST: usize = 8;

/// A context, with the tokens in its sequences.
pub struct Memory {
    pub context: Context,
    pub sequences: Sequences,
    /// Scales of the LoRA adapters for requests that do not set scales.
    scales: Arc<[f32]>,
    /// True once a request has set scales. Scales are then inputs of the graphs, so that changes do not rebuild graphs.
    has_own_scales: bool,
}

impl Memory {
    /// Creates the memory of an empty context.
    pub fn new(context: Context) -> Memory {
        Memory {
            sequences: Sequences::new(context.params().n_seq_max),
            scales: scales_of(context.adapters()),
            has_own_scales: false,
            context,
        }
    }

    /// Removes all sequences.
    pub fn clear(&mut self) {
        self.context.clear();
        self.sequences = Sequences::new(self.context.params().n_seq_max);
    }

    /// Returns the key of cached tokens for a request of `owner` with these scales.
    pub fn key(&self, owner: u64, scales: Option<&Arc<[f32]>>) -> CacheKey {
        CacheKey {
            owner,
            scales: scales.unwrap_or(&self.scales).clone(),
        }
    }

    /// Applies the LoRA adapters of the key of a sequence.
    ///
    /// # Errors
    /// Returns an error if graphs with scales by sequence need too much memory.
    pub fn adapt(&mut self, seq: usize) -> Result<(), SetAdaptersError> {
        let scales = &self.sequences.key_of(seq).scales;
        if !self.has_own_scales && *scales == self.scales {
            return Ok(());
        }
        let adapters = with_scales(self.context.adapters(), scales);
        self.context.set_seq_adapters(seq, Some(&adapters))?;
        self.has_own_scales = true;
        Ok(())
    }

    /// Sets the scales for requests that do not set scales. Removes all sequences, which were computed with the
    /// previous scales.
    ///
    /// # Errors
    /// Returns an error if the graphs need too much memory.
    pub fn set_scales(&mut self, scales: &[f32]) -> Result<(), SetAdaptersError> {
        for id in 0..self.sequences.len() {
            self.erase(id);
        }
        let adapters = with_scales(self.context.adapters(), scales);
        self.context.set_adapters(&adapters)?;
        self.scales = scales.into();
        Ok(())
    }

    /// Returns a sequence with the common prefix. This is the matching sequence if it is idle and has no other tokens,
    /// otherwise a copy that shares the prefix. Without a free sequence, a continued conversation overwrites its
    /// generated tokens, and others replace the least recently used sequence.
    pub fn reuse(&mut self, found: Match) -> Option<usize> {
        let Match { seq, n_common, is_idle } = found;
        if is_idle && self.sequences.tokens_of(seq).len() == n_common {
            return Some(seq);
        }
        let goes_on = is_idle && n_common + MAX_LOST >= self.sequences.n_prompt_of(seq);
        let other = match self.sequences.free() {
            None if goes_on => None,
            None => self.take_empty_sequence(Some(seq)),
            free => free,
        };
        match other {
            None if is_idle => {
                self.truncate(seq, n_common);
                Some(seq)
            }
            None => None,
            Some(other) => {
                // Some memories cannot share a partial sequence; its tokens are then recomputed.
                if self.context.seq_cp(seq, other, ..).is_ok() {
                    self.sequences.copy(seq, other);
                    self.truncate(other, n_common);
                }
                if goes_on {
                    self.sequences.supersede(seq);
                }
                Some(other)
            }
        }
    }

    /// Truncates a sequence to `keep` tokens, or to fewer if the memory cannot restore that position.
    pub fn truncate(&mut self, seq: usize, keep: usize) {
        if keep >= self.sequences.tokens_of(seq).len() {
            return;
        }
        let left = match self.context.seq_rm(seq, keep..) {
            Ok(()) => keep,
            // Recurrent states are saved at some positions only.
            Err(MemoryError::StateForgotten { available, .. }) => {
                let before = available.into_iter().rev().find(|&at| at < keep);
                before.filter(|&at| self.context.seq_rm(seq, at..).is_ok()).unwrap_or(0)
            }
            // A sliding window may no longer contain the tokens before the cut.
            Err(_) => 0,
        };
        if left == 0 {
            self.erase(seq);
        }
        self.sequences.truncate(seq, left);
    }

    /// Removes all tokens of a sequence.
    pub fn erase(&mut self, seq: usize) {
        let removed = self.context.seq_rm(seq, ..);
        debug_assert!(
            removed.is_ok(),
            "removing a whole sequence always succeeds: {removed:?}"
        );
        self.sequences.clear(seq);
    }

    /// Returns an empty sequence; evicts the least recently used idle sequence if necessary.
    pub fn take_empty_sequence(&mut self, but: Option<usize>) -> Option<usize> {
        if let Some(seq) = self.sequences.free() {
            return Some(seq);
        }
        let seq = self.sequences.oldest_idle(but)?;
        self.erase(seq);
        Some(seq)
    }

    /// Returns the number of free cells.
    pub fn n_free(&self) -> usize {
        if self.context.is_limited() {
            self.context.n_ctx() - self.context.n_used()
        } else {
            usize::MAX
        }
    }

    /// Evicts cached sequences until `n` cells are free; false if that is impossible.
    pub fn free_cells(&mut self, n: usize) -> bool {
        while self.n_free() < n {
            let Some(seq) = self.sequences.oldest_idle(None) else {
                return false;
            };
            self.erase(seq);
        }
        true
    }

    /// Returns the numbers of used and free cells and sequences. `n_waiting` is the number of queued requests.
    pub fn gauges(&self, n_waiting: usize) -> Gauges {
        let (n_running, n_kept) = self.sequences.n_busy_and_idle();
        Gauges {
            n_running,
            n_waiting,
            n_kept,
            n_used: self.context.n_used(),
            // Sequences with a common prefix share its cells.
            n_busy: self.sequences.n_busy_tokens().min(self.context.n_used()),
            n_ctx: self.context.n_ctx(),
            is_limited: self.context.is_limited(),
        }
    }
}

/// Slots: sequences as clients see them.
impl Memory {
    /// Returns the state of all sequences. Slots of other owners look empty.
    pub fn slots(&self, owner: u64) -> Vec<Slot> {
        let slot = |id: usize| Slot {
            is_busy: self.sequences.is_busy(id),
            n_held: match self.sequences.owner_of(id) {
                Some(other) if other == owner => self.sequences.tokens_of(id).len(),
                _ => 0,
            },
        };
        (0..self.sequences.len()).map(slot).collect()
    }

    /// Saves a sequence to a file; returns its number of tokens.
    pub fn save_slot(&mut self, id: usize, owner: u64, path: &Path) -> CommandResult<usize> {
        self.check_slot(id, owner)?;
        let tokens = self.sequences.tokens_of(id).to_vec();
        if tokens.is_empty() {
            return Err(CommandError::Empty { id });
        }
        self.context.save_seq_session(id, path, &tokens)?;
        Ok(tokens.len())
    }

    /// Restores a sequence from a file; returns its number of tokens.
    pub fn restore_slot(&mut self, id: usize, owner: u64, path: &Path) -> CommandResult<usize> {
        self.check_idle(id, owner)?;
        self.erase(id);
        self.sequences.take(id, self.key(owner, None), 0);
        self.sequences.release(id);
        self.adapt(id)?;
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
        self.sequences.take(id, self.key(owner, None), tokens.len());
        self.sequences.extend(id, &tokens);
        self.sequences.release(id);
        Ok(tokens.len())
    }

    /// Erases a sequence; returns the number of removed tokens.
    pub fn erase_slot(&mut self, id: usize, owner: u64) -> CommandResult<usize> {
        self.check_idle(id, owner)?;
        let n = self.sequences.tokens_of(id).len();
        self.erase(id);
        Ok(n)
    }

    /// Checks that a slot exists, and that no other owner has tokens in it.
    fn check_slot(&self, id: usize, owner: u64) -> CommandResult<()> {
        let n = self.sequences.len();
        if id >= n {
            return Err(CommandError::NoSlot { id, n });
        }
        match self.sequences.owner_of(id) {
            Some(other) if other != owner => Err(CommandError::Foreign { id }),
            _ => Ok(()),
        }
    }

    fn check_idle(&self, id: usize, owner: u64) -> CommandResult<()> {
        self.check_slot(id, owner)?;
        if self.sequences.is_busy(id) {
            Err(CommandError::Busy { id })
        } else {
            Ok(())
        }
    }
}

/// Returns the scales of adapters.
fn scales_of(adapters: &[ScaledAdapter]) -> Arc<[f32]> {
    adapters.iter().map(|(_, scale)| *scale).collect()
}

/// Returns the adapters with other scales.
fn with_scales(adapters: &[ScaledAdapter], scales: &[f32]) -> Vec<ScaledAdapter> {
    let pairs = adapters.iter().zip(scales);
    pairs.map(|((adapter, _), scale)| (adapter.clone(), *scale)).collect()
}

/// Returns the number of cells that a state needs, if too few were free.
fn missing_cells(error: &StateError) -> Option<usize> {
    match error {
        StateError::NoRoom { needed, .. } => Some(*needed),
        StateError::InFile { error, .. } => missing_cells(error),
        _ => None,
    }
}
