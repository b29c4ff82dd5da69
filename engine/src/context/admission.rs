//! Validation of batches. An invalid token rejects its sequence; all other sequences are decoded.

use std::sync::Arc;

use crate::model::Model;

use super::adapt::Adapters;
use super::axes::Lags;
use super::batch::{BatchToken, MAX_SEQUENCES, SeqSet};
use super::encoded::Encoded;
use super::hybrid::Memory;
use super::media::MediaRows;
use super::settings::Settings;
use super::{DecodeError, MemoryError};

/// Sequences of a batch that were not decoded, with the reason.
#[derive(Debug)]
pub struct Rejection {
    /// Rejected sequences: several if they share tokens; empty if a token has no valid sequence.
    pub seqs: SeqSet,
    /// First error found; indices refer to the batch.
    pub error: DecodeError,
}

/// State that batches are validated against.
#[derive(Clone, Copy)]
pub(super) struct Validator<'a> {
    pub model: &'a Model,
    pub settings: &'a Settings,
    pub adapters: &'a Adapters,
    /// Media that rows of the batch belong to.
    pub media: &'a [Arc<MediaRows>],
}

/// Validated tokens of a batch. Buffers are reused between batches.
#[derive(Default)]
pub(super) struct Admission {
    /// Whether each token of the batch is admitted.
    admitted: Vec<bool>,
    /// Admitted tokens in batch order.
    tokens: Vec<BatchToken>,
    rejections: Vec<Rejection>,
    /// Positions along the axes before the batch.
    lags: Lags,
}

impl Admission {
    /// Reserves memory for batches of `n_batch` tokens.
    pub fn reserve(&mut self, n_batch: usize) {
        self.admitted.reserve(n_batch);
        self.tokens.reserve(n_batch);
    }

    /// Returns the admitted tokens.
    pub fn tokens(&self) -> &[BatchToken] {
        &self.tokens
    }

    /// Returns, for each token of the batch, whether it is admitted.
    pub fn admitted(&self) -> &[bool] {
        &self.admitted
    }

    /// Returns the rejected sequences.
    pub fn rejections(&self) -> &[Rejection] {
        &self.rejections
    }

    /// Clears the batch.
    pub fn clear(&mut self) {
        self.admitted.clear();
        self.tokens.clear();
        self.rejections.clear();
    }

    /// Validates a batch.
    ///
    /// # Errors
    /// Returns the first error found if no token can be admitted.
    pub fn admit(
        &mut self,
        batch: &[BatchToken],
        validator: Validator<'_>,
        memory: &Memory,
        encoded: &Encoded,
    ) -> Result<(), DecodeError> {
        self.clear();
        validator.check_size(batch, memory)?;
        self.lags = *memory.kv.lags();
        let mut next = std::array::from_fn(|seq| memory.next_pos(seq));
        self.check_each(batch, |index, t| {
            validator.check_token(index, t)?;
            validator.check_media(batch, index)?;
            validator.check_position(index, t, &mut next, validator.model.max_positions())?;
            validator.check_encoded(t, encoded)
        })?;
        while let Some((seqs, error)) = self.overflow(memory, validator.settings.n_ctx) {
            self.reject(batch, seqs, error)?;
        }
        Ok(())
    }

    /// Validates a batch for the encoder; see [`Admission::admit`].
    pub fn admit_encode(&mut self, batch: &[BatchToken], validator: Validator<'_>) -> Result<(), DecodeError> {
        self.clear();
        validator.check_encode_size(batch)?;
        self.lags = Lags::default();
        let mut next = [0; MAX_SEQUENCES];
        self.check_each(batch, |index, t| {
            validator.check_token(index, t)?;
            validator.check_position(index, t, &mut next, validator.model.max_encoded())
        })
    }

    /// Rejects sequences of the batch and all sequences that share tokens with them. Returns the first error
    /// if no token is left.
    pub fn reject(&mut self, batch: &[BatchToken], seqs: SeqSet, error: DecodeError) -> Result<(), DecodeError> {
        self.rejections.push(Rejection { seqs, error });
        self.settle(batch)
    }

    /// Calls `check` for every token until one of its sequences is rejected. Returns the first error if no
    /// token is left.
    fn check_each(
        &mut self,
        batch: &[BatchToken],
        mut check: impl FnMut(usize, &BatchToken) -> Result<(), DecodeError>,
    ) -> Result<(), DecodeError> {
        self.admitted.resize(batch.len(), true);
        for (index, t) in batch.iter().enumerate() {
            if self.is_rejected(t.seqs) {
                continue;
            }
            if let Err(error) = check(index, t) {
                // A token without a valid sequence affects no other token.
                self.admitted[index] = false;
                self.rejections.push(Rejection { seqs: t.seqs, error });
            }
        }
        self.settle(batch)
    }

    fn is_rejected(&self, seqs: SeqSet) -> bool {
        self.rejections.iter().any(|r| r.seqs.intersects(seqs))
    }

    /// Returns the sequences of the first token that does not fit into the context, with the error.
    fn overflow(&self, memory: &Memory, n_ctx: usize) -> Option<(SeqSet, DecodeError)> {
        if !memory.is_limited() {
            return None;
        }
        let used = memory.n_used();
        let seqs = self.tokens.get(n_ctx.saturating_sub(used))?.seqs;
        let needed = self.tokens.iter().filter(|t| t.seqs.intersects(seqs)).count();
        Some((seqs, DecodeError::ContextFull { needed, used, n_ctx }))
    }

    /// Removes the tokens of rejected sequences. A shared token also rejects its other sequences. Returns the
    /// first error if no token is left.
    fn settle(&mut self, batch: &[BatchToken]) -> Result<(), DecodeError> {
        let mut spreads = !self.rejections.is_empty();
        while spreads {
            spreads = false;
            for (t, admitted) in batch.iter().zip(&mut self.admitted) {
                if let Some(r) = self.rejections.iter_mut().find(|r| r.seqs.intersects(t.seqs)) {
                    *admitted = false;
                    let all = r.seqs.union(t.seqs);
                    spreads |= all != r.seqs;
                    r.seqs = all;
                }
            }
        }
        // Merge rejections that were extended to the same sequences.
        for i in (1..self.rejections.len()).rev() {
            let (earlier, later) = self.rejections.split_at(i);
            if earlier.iter().any(|r| r.seqs.intersects(later[0].seqs)) {
                self.rejections.remove(i);
            }
        }
        self.tokens.clear();
        let admitted = batch.iter().zip(&self.admitted).filter(|(_, a)| **a);
        self.tokens.extend(admitted.map(|(t, _)| *t));
        self.lags.assign(&mut self.tokens);
        if self.tokens.is_empty() && !self.rejections.is_empty() {
            return Err(self.rejections.remove(0).error);
        }
        Ok(())
    }
}

impl Validator<'_> {
    /// Checks a batch for the encoder as a whole.
    fn check_encode_size(&self, tokens: &[BatchToken]) -> Result<(), DecodeError> {
        if !self.model.arch().encoder {
            let arch = self.model.arch().name;
            return Err(DecodeError::NoEncoder { arch });
        }
        let max = self.settings.n_encode_max();
        if tokens.len() > max {
            let found = tokens.len();
            return Err(DecodeError::EncodeTooLarge { found, max });
        }
        if tokens.is_empty() {
            return Err(DecodeError::EmptyBatch);
        }
        Ok(())
    }

    /// Checks a batch as a whole.
    fn check_size(&self, tokens: &[BatchToken], memory: &Memory) -> Result<(), DecodeError> {
        if tokens.is_empty() {
            return Err(DecodeError::EmptyBatch);
        }
        let (found, max) = (tokens.len(), self.settings.params.n_batch);
        if found <= max {
            return Ok(());
        }
        // Check the context size first, so that an oversized prompt yields the same error for every batch
        // size.
        let (needed, used, n_ctx) = (found, memory.n_used(), self.settings.n_ctx);
        if memory.is_limited() && used + needed > n_ctx {
            return Err(DecodeError::ContextFull { needed, used, n_ctx });
        }
        Err(DecodeError::BatchTooLarge { found, max })
    }

    /// Checks that the sequences of an encoder-decoder model were encoded.
    fn check_encoded(&self, t: &BatchToken, encoded: &Encoded) -> Result<(), DecodeError> {
        let has_encoder = self.model.arch().encoder;
        match t.seqs.iter().find(|&seq| has_encoder && !encoded.has(seq)) {
            Some(seq) => Err(DecodeError::NotEncoded { seq }),
            None => Ok(()),
        }
    }

    fn check_token(&self, index: usize, t: &BatchToken) -> Result<(), DecodeError> {
        let (token, n_vocab) = (t.token, self.model.base().n_vocab());
        if t.media.is_none() && token as usize >= n_vocab {
            return Err(DecodeError::Token { index, token, n_vocab });
        }
        let n_seq_max = self.settings.params.n_seq_max;
        if t.seqs.is_empty() || t.seqs.iter().any(|s| s >= n_seq_max) {
            return Err(DecodeError::Sequence { index, n_seq_max });
        }
        if !self.adapters.agree(t.seqs) {
            return Err(DecodeError::Adapters { index });
        }
        Ok(())
    }

    /// Checks the media row of a token, if any.
    fn check_media(&self, batch: &[BatchToken], index: usize) -> Result<(), DecodeError> {
        let Some(row) = batch[index].media else { return Ok(()) };
        let media = match self.media.get(row.medium as usize) {
            Some(media) if self.settings.params.media_rows > 0 && (row.row as usize) < media.len() => media,
            _ => return Err(DecodeError::NoMedia { index }),
        };
        let (found, expected) = (media.width(), self.model.media_width());
        if found != expected {
            return Err(DecodeError::MediaWidth { index, found, expected });
        }
        if !self.settings.has_whole_media || !row.is_image {
            return Ok(());
        }
        let (rows, max) = (row.left as usize + 1, self.settings.params.n_ubatch);
        if rows > max {
            return Err(DecodeError::MediaTooLong { index, rows, max });
        }
        let next = batch.get(index + 1).filter(|next| next.seqs == batch[index].seqs);
        if row.left > 0 && !row.continues_in(next.and_then(|next| next.media)) {
            return Err(DecodeError::MediaSplit { index });
        }
        Ok(())
    }

    /// Checks that positions are consecutive within each sequence and below the number of learned positions.
    /// `next` has the expected position of each sequence.
    fn check_position(
        &self,
        index: usize,
        t: &BatchToken,
        next: &mut [i32; MAX_SEQUENCES],
        learned: Option<usize>,
    ) -> Result<(), DecodeError> {
        for seq in t.seqs.iter() {
            let (expected, found) = (next[seq], t.pos);
            if found != expected || found == i32::MAX {
                return Err(DecodeError::Position {
                    index,
                    seq,
                    expected,
                    found,
                });
            }
            next[seq] = expected + 1;
        }
        match learned {
            Some(max) if t.pos as usize >= max => Err(DecodeError::PositionNotLearned {
                index,
                found: t.pos,
                max,
            }),
            _ => Ok(()),
        }
    }
}

/// Returns the sequences that caused an error, if the remaining sequences can be decoded without them.
pub(super) fn offending_sequences(error: &DecodeError) -> Option<SeqSet> {
    match error {
        DecodeError::Memory(MemoryError::StatesDiffer { first, second }) => {
            Some(SeqSet::one(*first).union(SeqSet::one(*second)))
        }
        _ => None,
    }
}
