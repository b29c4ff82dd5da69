//! What an encoder made of sequences, for the decoder to attend to.

use super::batch::{BatchToken, SeqSet};

/// The encoder's result, and which sequences each row belongs to.
#[derive(Default)]
pub(super) struct Encoded {
    /// f32 `[n_embd, n_rows]`
    rows: Vec<f32>,
    positions: Vec<i32>,
    seqs: Vec<SeqSet>,
}

impl Encoded {
    /// Takes memory for `n` rows, so that encoding needs none.
    pub fn reserve(&mut self, n_embd: usize, n: usize) {
        self.rows.reserve(n_embd * n);
        self.positions.reserve(n);
        self.seqs.reserve(n);
    }

    /// Rows.
    pub fn len(&self) -> usize {
        self.seqs.len()
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.rows.clear();
        self.positions.clear();
        self.seqs.clear();
    }

    /// True if a sequence has rows.
    pub fn has(&self, seq: usize) -> bool {
        self.seqs.iter().any(|s| s.contains(seq))
    }

    /// Gives `to` the rows of `from` in place of its own.
    pub fn share(&mut self, from: usize, to: usize) {
        for seqs in &mut self.seqs {
            *seqs = if seqs.contains(from) {
                seqs.union(SeqSet::one(to))
            } else {
                seqs.without(SeqSet::one(to))
            };
        }
    }

    /// Takes all rows from all sequences but one.
    pub fn keep(&mut self, seq: usize) {
        self.seqs.iter_mut().for_each(|s| *s = s.intersection(SeqSet::one(seq)));
    }

    /// Room for the rows of these tokens, in place of all others.
    pub fn take(&mut self, tokens: &[BatchToken], n_embd: usize) -> &mut [f32] {
        self.clear();
        self.rows.resize(n_embd * tokens.len(), 0.0);
        self.positions.extend(tokens.iter().map(|t| t.pos));
        self.seqs.extend(tokens.iter().map(|t| t.seqs));
        &mut self.rows
    }

    /// f32 `[n_embd, n_rows]`
    pub fn rows(&self) -> &[f32] {
        &self.rows
    }

    /// Position of each row.
    pub fn positions(&self) -> &[i32] {
        &self.positions
    }

    /// Sequences of each row, one bit per sequence.
    pub fn seqs(&self) -> &[SeqSet] {
        &self.seqs
    }
}
