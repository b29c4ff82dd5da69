//! Hidden states (operands of the final projection): outputs in addition to logits, and inputs of MTP layers.

use std::ops::Range;

use crate::backend::PendingRead;
use crate::builder::HiddenRows;
use crate::model::Model;

use super::DecodeError;
use super::batch::BatchToken;
use super::result_rows::{ResultRows, number_rows};
use super::settings::Settings;

/// Hidden states of the last batch, and those passed in with it.
pub(super) struct Hidden {
    /// Selection of hidden states that graphs output.
    kept: HiddenRows,
    /// Graphs need a hidden state per token as input (MTP).
    takes: bool,
    n_embd: usize,
    /// `[n, n_embd]`
    pub found: ResultRows,
    /// Row of each token of the batch, if any.
    rows: Vec<Option<u32>>,
    /// Hidden state of the predecessor of each computed token, `[n, n_embd]`.
    given: Vec<f32>,
}

impl Hidden {
    pub fn new(model: &Model, settings: &Settings) -> Hidden {
        Hidden {
            kept: settings.hidden_rows(),
            takes: settings.params.mtp,
            n_embd: model.base().n_embd(),
            found: ResultRows::default(),
            rows: Vec::new(),
            given: Vec::new(),
        }
    }

    /// Reserves memory for the largest batch.
    pub fn reserve(&mut self, settings: &Settings) {
        let p = &settings.params;
        let n_found = match self.kept {
            HiddenRows::None => 0,
            HiddenRows::All => p.n_batch,
            HiddenRows::Wanted => p.n_outputs_max,
        };
        self.found.reserve(n_found * self.n_embd);
        if n_found > 0 {
            self.rows.reserve(p.n_batch);
        }
        if self.takes {
            self.given.reserve(p.n_batch * self.n_embd);
        }
    }

    /// Checks that the batch has one hidden state per token if graphs need them, and none otherwise.
    pub fn check(&self, n_tokens: usize, given: &[f32]) -> Result<(), DecodeError> {
        let expected = if self.takes { n_tokens * self.n_embd } else { 0 };
        match given.len() {
            found if found == expected => Ok(()),
            found => Err(DecodeError::Hidden { found, expected }),
        }
    }

    /// Starts a batch: clears previous rows and stores the input rows of admitted tokens.
    pub fn start(&mut self, batch: &[BatchToken], admitted: &[bool], given: &[f32]) {
        self.found.clear();
        self.given.clear();
        let has_row = |t: &BatchToken| match self.kept {
            HiddenRows::None => false,
            HiddenRows::All => true,
            HiddenRows::Wanted => t.output,
        };
        let with_rows = batch.iter().zip(admitted).map(|(t, &admitted)| admitted && has_row(t));
        number_rows(&mut self.rows, with_rows);
        for (row, &admitted) in given.chunks_exact(self.n_embd).zip(admitted) {
            if admitted {
                self.given.extend_from_slice(row);
            }
        }
    }

    /// Removes all hidden states.
    pub fn clear(&mut self) {
        self.start(&[], &[], &[]);
    }

    /// Returns the input rows of some of the admitted tokens; empty if graphs need none.
    pub fn given(&self, tokens: Range<usize>) -> &[f32] {
        let rows = tokens.start * self.n_embd..tokens.end * self.n_embd;
        self.given.get(rows).unwrap_or_default()
    }

    /// Returns the number of rows that the graph of `n_tokens` tokens with `n_outputs` outputs computes.
    pub fn n_rows(&self, n_tokens: usize, n_outputs: usize) -> usize {
        match self.kept {
            HiddenRows::None => 0,
            HiddenRows::All => n_tokens,
            HiddenRows::Wanted => n_outputs,
        }
    }

    /// Appends `n` rows of `n_embd` values filled by `read`.
    pub fn read<E>(
        &mut self,
        n: usize,
        read: impl FnOnce(&mut [f32]) -> Result<Option<Box<dyn PendingRead>>, E>,
    ) -> Result<(), E> {
        self.found.read(n, self.n_embd, read)
    }

    /// Returns the hidden state `[n_embd]` of the token at `index` of the batch.
    pub fn of_token(&self, index: usize) -> Option<&[f32]> {
        self.found.get((*self.rows.get(index)?)? as usize)
    }
}
