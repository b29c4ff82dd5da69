//! Encoder outputs, to which the decoder attends.

use super::batch::{BatchToken, SeqSet};

/// Encoder output, with position and sequences of each row.
#[derive(Default)]
pub(super) struct Encoded {
    /// Encoder outputs, f32 `[n_embd, n_rows]`.
    rows: Vec<f32>,
    positions: Vec<i32>,
    seqs: Vec<SeqSet>,
}

impl Encoded {
    /// Reserves memory for `n` rows, so that encoding does not allocate.
    pub fn reserve(&mut self, n_embd: usize, n: usize) {
        self.rows.reserve(n_embd * n);
        self.positions.reserve(n);
        self.seqs.reserve(n);
    }

    /// Returns the number of rows.
    pub fn len(&self) -> usize {
        self.seqs.len()
    }

    /// Removes all encoder outputs.
    pub fn clear(&mut self) {
        self.rows.clear();
        self.positions.clear();
        self.seqs.clear();
    }

    /// Returns true if a sequence has rows.
    pub fn has(&self, seq: usize) -> bool {
        self.seqs.iter().any(|s| s.contains(seq))
    }

    /// Makes `to` share the rows of `from`, replacing its own.
    pub fn share(&mut self, from: usize, to: usize) {
        for seqs in &mut self.seqs {
            *seqs = if seqs.contains(from) {
                seqs.union(SeqSet::one(to))
            } else {
                seqs.without(SeqSet::one(to))
            };
        }
    }

    /// Removes all sequences except `seq`.
    pub fn keep(&mut self, seq: usize) {
        self.seqs.iter_mut().for_each(|s| *s = s.intersection(SeqSet::one(seq)));
    }

    /// Replaces all rows and returns the buffer for the rows of these tokens.
    pub fn take(&mut self, tokens: &[BatchToken], n_embd: usize) -> &mut [f32] {
        self.clear();
        self.rows.resize(n_embd * tokens.len(), 0.0);
        self.positions.extend(tokens.iter().map(|t| t.pos));
        self.seqs.extend(tokens.iter().map(|t| t.seqs));
        &mut self.rows
    }

    /// Returns the rows, f32 `[n_embd, n_rows]`.
    pub fn rows(&self) -> &[f32] {
        &self.rows
    }

    /// Returns the position of each row.
    pub fn positions(&self) -> &[i32] {
        &self.positions
    }

    /// Returns the sequences of each row.
    pub fn seqs(&self) -> &[SeqSet] {
        &self.seqs
    }
}
