//! Whether a batch can be decoded or encoded at all, found out before anything is changed.

use crate::model::Model;

use super::DecodeError;
use super::adapt::Adapters;
use super::batch::{BatchToken, MAX_SEQUENCES, SeqSet};
use super::encoded::Encoded;
use super::hybrid::Memory;
use super::settings::Settings;

/// What batches are checked against.
pub(super) struct Validator<'a> {
    pub model: &'a Model,
    pub settings: &'a Settings,
    pub adapters: &'a Adapters,
}

impl Validator<'_> {
    /// An error unless these tokens can be decoded.
    pub fn check_decode(&self, tokens: &[BatchToken], memory: &Memory, encoded: &Encoded) -> Result<(), DecodeError> {
        // Room first: a prompt that is too long for the context is told so, whatever the batch size.
        let (used, n_ctx) = (memory.n_used(), self.settings.n_ctx);
        if memory.is_limited() && used + tokens.len() > n_ctx {
            let needed = tokens.len();
            return Err(DecodeError::ContextFull { needed, used, n_ctx });
        }
        let max = self.settings.params.n_batch;
        if tokens.len() > max {
            let found = tokens.len();
            return Err(DecodeError::BatchTooLarge { found, max });
        }
        self.check_tokens(tokens, std::array::from_fn(|seq| memory.next_pos(seq)))?;
        if self.model.arch().encoder {
            let seqs = tokens.iter().fold(SeqSet::default(), |all, t| all.or(t.seqs));
            if let Some(seq) = seqs.iter().find(|&seq| !encoded.has(seq)) {
                return Err(DecodeError::NotEncoded { seq });
            }
        }
        Ok(())
    }

    /// An error unless these tokens can be encoded.
    pub fn check_encode(&self, tokens: &[BatchToken]) -> Result<(), DecodeError> {
        if !self.model.arch().encoder {
            let arch = self.model.arch().name;
            return Err(DecodeError::NoEncoder { arch });
        }
        let max = self.settings.n_encode_max();
        if tokens.len() > max {
            let found = tokens.len();
            return Err(DecodeError::EncodeTooLarge { found, max });
        }
        self.check_tokens(tokens, [0; MAX_SEQUENCES])
    }

    /// Checks ids, sequences and positions, which go on from `next` of each sequence.
    fn check_tokens(&self, tokens: &[BatchToken], mut next: [i32; MAX_SEQUENCES]) -> Result<(), DecodeError> {
        if tokens.is_empty() {
            return Err(DecodeError::EmptyBatch);
        }
        for (index, t) in tokens.iter().enumerate() {
            self.check_token(index, t)?;
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
        }
        Ok(())
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
}
