//! Speculative decoding: a drafter proposes tokens, and one decode computes the logits after all of them.
//! While the sampled tokens match the drafts, the next logits are already available.
//!
//! Every token is sampled from the target model's logits by the caller's sampler chain, in order. A draft
//! only determines whether another decode is needed. The output therefore has the same distribution as
//! without drafts, for any sampler. With a seed or greedy sampling, the output is identical, provided that
//! batched logits round like those of single tokens.
//!
//! - [`Lookup`], [`DraftModel`], [`Mtp`]: sources of drafts
//! - [`DraftController`]: number of drafts that improve the speed
//! - [`Speculator`]: decodes one or more sequences with their drafts

mod controller;
mod draft_model;
mod lookup;
mod mtp;
mod sequence;
mod speculator;

use crate::context::{Context, DecodeError};
use crate::vocab::Token;

pub use controller::{DraftController, MAX_DRAFTS};
pub use draft_model::{DraftModel, DraftModelError};
pub use lookup::Lookup;
pub use mtp::{Mtp, MtpError};
pub use speculator::{Speculator, Step};

/// Minimum probability of a draft according to the drafting model. Less likely drafts are rarely accepted.
const MIN_PROBABILITY: f32 = 0.4;

/// Tokens of a sequence that a context has just decoded.
#[derive(Clone, Copy)]
pub struct Decoded<'a> {
    /// Context that decoded the tokens.
    pub context: &'a Context,
    /// Index of the first token in the last decoded batch. The other tokens follow it.
    pub first: usize,
    /// Number of tokens of the sequence before these tokens.
    pub n_before: usize,
    /// The decoded tokens.
    pub tokens: &'a [Token],
}

/// Proposes the next tokens of a sequence.
pub trait Drafter: Send {
    /// Called with the tokens of a sequence as they are decoded, in order. Drafters can read the target
    /// model's hidden states from the context ([`Context::hidden`]).
    fn follow(&mut self, _: Decoded<'_>) -> Result<(), DecodeError> {
        Ok(())
    }

    /// Appends up to `n` tokens that may follow `text` and `token` to the empty list `drafts`.
    fn draft(&mut self, text: &[Token], token: Token, n: usize, drafts: &mut Vec<Token>) -> Result<(), DecodeError>;

    /// Returns true if drafting takes negligible time.
    fn is_free(&self) -> bool;
}

/// Numbers of verified and accepted drafts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drafted {
    /// Number of draft tokens that were verified.
    pub n_drafts: usize,
    /// Number of draft tokens that were accepted.
    pub n_right: usize,
}

/// Returns the most likely token, if its probability is high enough for a draft.
fn most_likely(logits: &[f32]) -> Option<Token> {
    let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b]))?;
    let sum: f32 = logits.iter().map(|x| (x - logits[best]).exp()).sum();
    if 1.0 / sum >= MIN_PROBABILITY {
        Some(best as Token)
    } else {
        None
    }
}
