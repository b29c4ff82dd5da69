//! Speculative decoding: tokens are guessed, and one decode computes the logits behind all of them. As long as what is then sampled is what was
//! guessed, the next logits are there already.
//!
//! Every token is sampled from the model's own logits by the caller's own sampler chain, in order, and a guess only decides whether another
//! decode is needed. So texts have the distribution of those without drafts, for any sampler; with a seed, or greedily, they are the same texts
//! as far as the logits of several columns are those of single ones, bit for bit or within rounding that no sampler sees.
//!
//! - [`Lookup`], [`DraftModel`], [`Mtp`]: where drafts come from
//! - [`Pace`]: how many of them pay
//! - [`Speculator`]: decodes sequences with their drafts, one or many in a batch

mod draft_model;
mod lookup;
mod mtp;
mod pace;
mod sequence;
mod speculator;

use crate::context::{Context, DecodeError};
use crate::vocab::Token;

pub use draft_model::{DraftModel, DraftModelError};
pub use lookup::Lookup;
pub use mtp::{Mtp, MtpError};
pub use pace::{MAX_DRAFTS, Pace};
pub use speculator::{Speculator, Step};

/// A draft is given up where the model that makes it thinks it less likely than this: it would hardly be right.
const LEAST_PROBABILITY: f32 = 0.4;

/// Tokens of a text that a context has just decoded.
#[derive(Clone, Copy)]
pub struct Decoded<'a> {
    /// The context.
    pub context: &'a Context,
    /// Where the first of them stands in the batch that was decoded last; the others follow it there.
    pub first: usize,
    /// Tokens of the text before them.
    pub n_before: usize,
    /// They are.
    pub tokens: &'a [Token],
}

/// Guesses how a text goes on.
pub trait Drafter: Send {
    /// Is shown the tokens of a text as they are decoded, in order, for what the model itself knows of them ([`Context::hidden`]).
    fn follow(&mut self, _: Decoded<'_>) -> Result<(), DecodeError> {
        Ok(())
    }

    /// Adds at most `n` tokens to `drafts`, which is empty, that may follow `text` and then `token`.
    fn draft(&mut self, text: &[Token], token: Token, n: usize, drafts: &mut Vec<Token>) -> Result<(), DecodeError>;

    /// Guessing takes no time worth counting.
    fn is_free(&self) -> bool;
}

/// Drafts that were verified, and those that were right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drafted {
    /// Drafts computed along with a token.
    pub n_drafts: usize,
    /// Of them, those that were sampled after it.
    pub n_right: usize,
}

/// The most likely token, if it is likely enough to be a draft.
fn most_likely(logits: &[f32]) -> Option<Token> {
    let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b]))?;
    let sum: f32 = logits.iter().map(|x| (x - logits[best]).exp()).sum();
    (1.0 / sum >= LEAST_PROBABILITY).then_some(best as Token)
}
