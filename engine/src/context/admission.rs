//! Which tokens of a batch can be computed. What is wrong with a sequence rejects that sequence; the others go on.

use crate::model::Model;

use super::adapt::Adapters;
use super::batch::{BatchToken, MAX_SEQUENCES, SeqSet};
use super::encoded::Encoded;
use super::hybrid::Memory;
use super::settings::Settings;
use super::{DecodeError, MemoryError};

/// Sequences of a batch that were not decoded, and why.
#[derive(Debug)]
pub struct Rejection {
    /// The sequences, which share tokens if there are several; empty if a token names no sequence that exists.
    pub seqs: SeqSet,
    /// What is wrong with one of their tokens. Indices count in the batch.
    pub error: DecodeError,
}

/// What batches are checked against.
#[derive(Clone, Copy)]
pub(super) struct Validator<'a> {
    pub model: &'a Model,
    pub settings: &'a Settings,
    pub adapters: &'a Adapters,
}

/// The tokens of a batch that are computed; the memory of its lists is kept from batch to batch.
#[derive(Default)]
pub(super) struct Admission {
    /// By token of the batch.
    admitted: Vec<bool>,
    /// Those that are admitted, in order.
    tokens: Vec<BatchToken>,
    rejections: Vec<Rejection>,
}

impl Admission {
    /// Takes memory for batches of `n_batch` tokens.
    pub fn reserve(&mut self, n_batch: usize) {
        self.admitted.reserve(n_batch);
        self.tokens.reserve(n_batch);
    }

    /// The tokens that are computed.
    pub fn tokens(&self) -> &[BatchToken] {
        &self.tokens
    }

    /// For each token of the batch whether it is computed.
    pub fn admitted(&self) -> &[bool] {
        &self.admitted
    }

    /// What was rejected of the batch.
    pub fn rejections(&self) -> &[Rejection] {
        &self.rejections
    }

    /// Forgets the batch.
    pub fn clear(&mut self) {
        self.admitted.clear();
        self.tokens.clear();
        self.rejections.clear();
    }

    /// Looks at a batch. An error if nothing of it can be computed: the first that was found.
    pub fn admit(
        &mut self,
        batch: &[BatchToken],
        validator: Validator<'_>,
        memory: &Memory,
        encoded: &Encoded,
    ) -> Result<(), DecodeError> {
        self.clear();
        validator.check_size(batch, memory)?;
        let mut next = std::array::from_fn(|seq| memory.next_pos(seq));
        self.check_each(batch, |index, t| {
            validator.check_token(index, t)?;
            validator.check_position(index, t, &mut next)?;
            validator.check_encoded(t, encoded)
        })?;
        while let Some((seqs, error)) = self.overflow(memory, validator.settings.n_ctx) {
            self.reject(batch, seqs, error)?;
        }
        Ok(())
    }

    /// As [`Admission::admit`], for the encoder.
    pub fn admit_encode(&mut self, batch: &[BatchToken], validator: Validator<'_>) -> Result<(), DecodeError> {
        self.clear();
        validator.check_encode_size(batch)?;
        let mut next = [0; MAX_SEQUENCES];
        self.check_each(batch, |index, t| {
            validator.check_token(index, t)?;
            validator.check_position(index, t, &mut next)
        })
    }

    /// Rejects sequences of the batch, and those that they share tokens with. An error if nothing is left.
    pub fn reject(&mut self, batch: &[BatchToken], seqs: SeqSet, error: DecodeError) -> Result<(), DecodeError> {
        self.rejections.push(Rejection { seqs, error });
        self.settle(batch)
    }

    /// Asks `check` about every token, up to the first of a sequence that it finds wrong. An error if nothing is left.
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
                // A token of no sequence takes no other with it.
                self.admitted[index] = false;
                self.rejections.push(Rejection { seqs: t.seqs, error });
            }
        }
        self.settle(batch)
    }

    fn is_rejected(&self, seqs: SeqSet) -> bool {
        self.rejections.iter().any(|r| r.seqs.intersects(seqs))
    }

    /// The sequences of the first token that there is no room for.
    fn overflow(&self, memory: &Memory, n_ctx: usize) -> Option<(SeqSet, DecodeError)> {
        if !memory.is_limited() {
            return None;
        }
        let used = memory.n_used();
        let seqs = self.tokens.get(n_ctx.saturating_sub(used))?.seqs;
        let needed = self.tokens.iter().filter(|t| t.seqs.intersects(seqs)).count();
        Some((seqs, DecodeError::ContextFull { needed, used, n_ctx }))
    }

    /// Takes out all tokens of rejected sequences. A token that several sequences share takes the others with it. An error if nothing is
    /// left: the first that was found.
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
        // What an earlier one spread to is rejected once.
        for i in (1..self.rejections.len()).rev() {
            let (earlier, later) = self.rejections.split_at(i);
            if earlier.iter().any(|r| r.seqs.intersects(later[0].seqs)) {
                self.rejections.remove(i);
            }
        }
        self.tokens.clear();
        let admitted = batch.iter().zip(&self.admitted).filter(|(_, a)| **a);
        self.tokens.extend(admitted.map(|(t, _)| *t));
        if self.tokens.is_empty() && !self.rejections.is_empty() {
            return Err(self.rejections.remove(0).error);
        }
        Ok(())
    }
}

impl Validator<'_> {
    /// What is wrong with a batch for the encoder as a whole.
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

    /// What is wrong with a batch as a whole.
    fn check_size(&self, tokens: &[BatchToken], memory: &Memory) -> Result<(), DecodeError> {
        if tokens.is_empty() {
            return Err(DecodeError::EmptyBatch);
        }
        let (found, max) = (tokens.len(), self.settings.params.n_batch);
        if found <= max {
            return Ok(());
        }
        // Room first: a prompt that is too long for the context is told so, whatever the batch size.
        let (needed, used, n_ctx) = (found, memory.n_used(), self.settings.n_ctx);
        if memory.is_limited() && used + needed > n_ctx {
            return Err(DecodeError::ContextFull { needed, used, n_ctx });
        }
        Err(DecodeError::BatchTooLarge { found, max })
    }

    /// The decoder of a model with an encoder looks at what was encoded.
    fn check_encoded(&self, t: &BatchToken, encoded: &Encoded) -> Result<(), DecodeError> {
        let has_encoder = self.model.arch().encoder;
        match t.seqs.iter().find(|&seq| has_encoder && !encoded.has(seq)) {
            Some(seq) => Err(DecodeError::NotEncoded { seq }),
            None => Ok(()),
        }
    }

    fn check_token(&self, index: usize, t: &BatchToken) -> Result<(), DecodeError> {
        let (token, n_vocab) = (t.token, self.model.base().n_vocab());
        if token as usize >= n_vocab {
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

    /// Positions of a sequence follow one another, up to the last that the model has learned. `next` is where each sequence goes on.
    fn check_position(&self, index: usize, t: &BatchToken, next: &mut [i32; MAX_SEQUENCES]) -> Result<(), DecodeError> {
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
        match self.model.max_positions() {
            Some(max) if t.pos as usize >= max => Err(DecodeError::PositionNotLearned {
                index,
                found: t.pos,
                max,
            }),
            _ => Ok(()),
        }
    }
}

/// The sequences that an error is about although others may be decoded without them.
pub(super) fn to_blame(error: &DecodeError) -> Option<SeqSet> {
    match error {
        DecodeError::Memory(MemoryError::StatesDiffer { first, second }) => {
            Some(SeqSet::one(*first).union(SeqSet::one(*second)))
        }
        _ => None,
    }
}
