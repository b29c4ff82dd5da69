//! Outputs of a batch: logits of tokens, or embeddings of sequences.

use crate::builder::GraphOutput;
use crate::model::Model;
use crate::sample::{BestLogits, TokenLogits};

use super::DecodeError;
use super::batch::BatchToken;
use super::pooled::Pooled;
use super::result_rows::{ResultRows, number_rows};
use super::settings::Settings;

/// Outputs of the last batch, and their assignment to tokens or sequences.
pub(super) struct Outputs {
    /// `[n_outputs, width]`; the width is the vocabulary size or the embedding size.
    pub found: ResultRows,
    /// Output row of each token of the batch, if any.
    rows: Vec<Option<u32>>,
    /// Best logits of tokens whose other logits are not needed.
    pub(super) best: ResultRows,
    /// Number of best logits per row; 0 if no token is limited to them.
    pub(super) n_best: usize,
    /// Storage of each output row. Empty if row `i` is row `i` of `found`.
    pub(super) stored: Vec<StoredRow>,
    pooled: Pooled,
}

/// Index of an output row among the rows of its kind.
#[derive(Clone, Copy)]
pub(super) enum StoredRow {
    All(u32),
    Best(u32),
}

impl Outputs {
    pub fn new(model: &Model, settings: &Settings) -> Outputs {
        let p = &settings.params;
        Outputs {
            found: ResultRows::default(),
            rows: Vec::new(),
            best: ResultRows::default(),
            n_best: 0,
            stored: Vec::new(),
            pooled: Pooled::new(model, p.pooling, p.n_seq_max, p.n_batch),
        }
    }

    /// Reserves memory for the largest batch.
    pub fn reserve(&mut self, model: &Model, settings: &Settings) {
        let p = &settings.params;
        self.found.reserve(p.n_outputs_max * model.base().n_vocab());
        self.rows.reserve(p.n_batch);
        self.stored.reserve(p.n_batch);
    }

    /// Starts a batch: clears previous outputs and assigns rows to admitted tokens.
    pub fn start(&mut self, batch: &[BatchToken], admitted: &[bool], computed: &[BatchToken]) {
        self.found.clear();
        self.best.clear();
        self.stored.clear();
        let n_best = computed.iter().filter(|t| t.output).map(|t| t.n_best).max();
        self.n_best = n_best.unwrap_or(0) as usize;
        let with_rows = batch.iter().zip(admitted).map(|(t, &admitted)| t.output && admitted);
        number_rows(&mut self.rows, with_rows);
        self.pooled.plan(computed);
        if self.are_pooled() {
            self.n_best = 0;
        }
    }

    /// Waits for pending reads.
    pub fn complete(&mut self) -> Result<(), DecodeError> {
        self.best.complete()?;
        Ok(self.found.complete()?)
    }

    /// Removes all outputs.
    pub fn clear(&mut self) {
        self.start(&[], &[], &[]);
    }

    /// Returns the number of output rows of a ubatch.
    pub fn n_rows(&self, tokens: &[BatchToken]) -> usize {
        let pooled = self.pooled.n_rows();
        pooled.unwrap_or_else(|| tokens.iter().filter(|t| t.output).count())
    }

    /// Returns true if the outputs are embeddings of sequences.
    pub fn are_pooled(&self) -> bool {
        self.pooled.n_rows().is_some()
    }

    /// Returns the graph output for `n_rows` rows.
    pub fn graph_output(&self, n_rows: usize) -> GraphOutput {
        self.pooled.graph_output(n_rows)
    }

    /// Returns the indices in the ubatch of the tokens whose rows the graph outputs, in ascending order.
    /// Never empty, because a graph has at least one output row.
    pub fn ids<'a>(&'a self, tokens: &'a [BatchToken]) -> impl Iterator<Item = i32> + 'a {
        let pooled = self.pooled.n_rows().is_some();
        let of_sequences: &[u32] = if pooled { self.pooled.tokens() } else { &[] };
        let of_tokens: &[BatchToken] = if pooled { &[] } else { tokens };
        let requested = of_tokens.iter().enumerate().filter(|(_, t)| t.output);
        let instead = if !pooled && tokens.iter().all(|t| !t.output) {
            Some(tokens.len() as i32 - 1)
        } else {
            None
        };
        let of_sequences = of_sequences.iter().map(|&i| i as i32);
        of_sequences.chain(requested.map(|(i, _)| i as i32)).chain(instead)
    }

    /// Returns the weight of each token in the mean of each sequence, `[T, S]`.
    pub fn shares(&self) -> &[f32] {
        self.pooled.shares()
    }

    /// Returns the output row of the token at `index` of the batch, for a vocabulary of `n_vocab` tokens.
    pub fn of_token(&self, index: usize, n_vocab: usize) -> Option<TokenLogits<'_>> {
        let row = (*self.rows.get(index)?)?;
        let stored = if self.stored.is_empty() {
            StoredRow::All(row)
        } else {
            *self.stored.get(row as usize)?
        };
        match stored {
            StoredRow::All(row) => self.found.get(row as usize).map(TokenLogits::All),
            StoredRow::Best(row) => {
                let best = BestLogits::from_words(self.best.get(row as usize)?, n_vocab)?;
                Some(TokenLogits::Best(best))
            }
        }
    }

    /// Returns the output row of a sequence.
    pub fn of_sequence(&self, seq: usize) -> Option<&[f32]> {
        self.found.get(self.pooled.row_of(seq)?)
    }
}
