//! Encoder outputs, to which the decoder attends.

use super::batch::{BatchToken, SeqSet};

/// Encoder output, with position and sequences of each row.
#[derive(Default)]
pub(super) struct Encoded {
    /// Encoder outputs, f32 `[n_embd, n_rows]`.
    rows: Vec<f32>,
    /// Token of each row.
    tokens: Vec<BatchToken>,
    /// Whether the stored keys and values of cross attention were computed from the rows.
    is_stored: bool,
}

impl Encoded {
    /// Reserves memory for `n` rows, so that encoding does not allocate.
    pub fn reserve(&mut self, n_embd: usize, n: usize) {
        self.rows.reserve(n_embd * n);
        self.tokens.reserve(n);
    }

    /// Returns the number of rows.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Removes all encoder outputs.
    pub fn clear(&mut self) {
        self.rows.clear();
        self.tokens.clear();
        self.is_stored = false;
    }

    /// Returns true if a sequence has rows.
    pub fn has(&self, seq: usize) -> bool {
        self.tokens.iter().any(|t| t.seqs.contains(seq))
    }

    /// Makes `to` share the rows of `from`, replacing its own.
    pub fn share(&mut self, from: usize, to: usize) {
        for BatchToken { seqs, .. } in &mut self.tokens {
            *seqs = if seqs.contains(from) {
                seqs.union(SeqSet::one(to))
            } else {
                seqs.without(SeqSet::one(to))
            };
        }
    }

    /// Removes all sequences except `seq`.
    pub fn keep(&mut self, seq: usize) {
        let tokens = self.tokens.iter_mut();
        tokens.for_each(|t| t.seqs = t.seqs.intersection(SeqSet::one(seq)));
    }

    /// Replaces all rows and returns the buffer for the rows of these tokens.
    pub fn take(&mut self, tokens: &[BatchToken], n_embd: usize) -> &mut [f32] {
        self.clear();
        self.rows.resize(n_embd * tokens.len(), 0.0);
        self.tokens.extend_from_slice(tokens);
        &mut self.rows
    }

    /// Returns the rows, f32 `[n_embd, n_rows]`.
    pub fn rows(&self) -> &[f32] {
        &self.rows
    }

    /// Returns the token of each row, with its position and sequences.
    pub fn tokens(&self) -> &[BatchToken] {
        &self.tokens
    }

    /// Returns true if the stored keys and values of cross attention were computed from the rows.
    pub fn is_stored(&self) -> bool {
        self.is_stored
    }

    /// Records whether the stored keys and values of cross attention were computed from the rows.
    pub fn set_stored(&mut self, is_stored: bool) {
        self.is_stored = is_stored;
    }
}
