//! Speculative decoding: tokens are guessed, and one decode computes the logits behind all of them. As long as what is then sampled is what was
//! guessed, the next logits are there already.
//!
//! Every token is sampled from the model's own logits by the caller's own sampler chain, in order, and a guess only decides whether another
//! decode is needed. So texts have the distribution of those without drafts, for any sampler; with a seed, or greedily, they are the same texts
//! as far as the logits of several columns are those of single ones, bit for bit or within rounding that no sampler sees.
//!
//! - [`Lookup`], [`DraftModel`], [`Mtp`]: where drafts come from
//! - [`Pace`]: how many of them pay

mod draft_model;
mod lookup;
mod mtp;
mod pace;

use std::time::Instant;

use crate::context::{Batch, Context, DecodeError, SeqSet};
use crate::vocab::Token;

pub use draft_model::{DraftModel, DraftModelError};
pub use lookup::Lookup;
pub use mtp::{Mtp, MtpError};
pub use pace::{MAX_DRAFTS, Pace};

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

/// Decodes the tokens of one sequence, with drafts where they pay.
///
/// The context needs [`MAX_DRAFTS`] + 1 outputs and tokens in a batch, and, for recurrent models, as many states to go back to
/// (`n_outputs_max`, `n_rollback`).
pub struct Speculator {
    drafter: Box<dyn Drafter>,
    pace: Pace,
    /// The drafts in the context's memory: behind the last token decoded.
    drafts: Vec<Token>,
    /// How many of them were made, and not only added to fill a batch.
    n_made: usize,
    /// How many of them turned out to be right.
    n_right: usize,
    /// The drafter has not been shown yet what became of the batch, which followed so many tokens.
    unseen: Option<usize>,
    /// Tokens that it is shown.
    seen: Vec<Token>,
    /// What would have been drafted where nothing was.
    shadow: Vec<Token>,
    batch: Batch,
    drafted: Drafted,
}

impl Speculator {
    /// Drafts of `drafter`, as many at once as `pace` says.
    pub fn new(drafter: Box<dyn Drafter>, pace: Pace) -> Speculator {
        Speculator {
            drafter,
            pace,
            drafts: Vec::with_capacity(MAX_DRAFTS),
            n_made: 0,
            n_right: 0,
            unseen: None,
            seen: Vec::with_capacity(MAX_DRAFTS + 1),
            shadow: Vec::with_capacity(MAX_DRAFTS),
            batch: Batch::new(),
            drafted: Drafted::default(),
        }
    }

    /// What became of drafts so far.
    pub fn drafted(&self) -> Drafted {
        self.drafted
    }

    /// Lets `token` follow `text`, which is all that `seq` has, and returns the index by which [`Context::logits`] has the logits after it. They
    /// were computed already if the token was a draft. An error leaves the sequence with `text`.
    pub fn advance(
        &mut self,
        context: &mut Context,
        seq: usize,
        text: &[Token],
        token: Token,
    ) -> Result<usize, DecodeError> {
        if let Some(&draft) = self.drafts.get(self.n_right) {
            let is_right = draft == token;
            if self.n_right < self.n_made {
                self.pace.judged(is_right);
            }
            if is_right {
                self.n_right += 1;
                self.drafted.n_right += 1;
                return Ok(self.n_right);
            }
        }
        if let Some(&shadow) = self.shadow.first() {
            self.pace.judged(shadow == token);
        }
        self.forget_drafts(context, seq, text.len())?;
        self.guess(context, text, token)?;
        self.batch.clear();
        self.batch.push(token, text.len(), SeqSet::one(seq), true);
        for (i, &draft) in self.drafts.iter().enumerate() {
            self.batch.push(draft, text.len() + 1 + i, SeqSet::one(seq), true);
        }
        let start = Instant::now();
        let decoded = context.decode(&self.batch);
        if decoded.is_err() {
            self.drafts.clear();
        }
        decoded?;
        self.unseen = Some(text.len());
        self.pace.decoded(self.drafts.len(), start.elapsed().as_secs_f64());
        self.drafted.n_drafts += self.drafts.len();
        Ok(0)
    }

    /// Shows the drafter tokens that were decoded otherwise than by [`Speculator::advance`], as those of a prompt are.
    pub fn follow(&mut self, decoded: Decoded<'_>) -> Result<(), DecodeError> {
        self.drafter.follow(decoded)
    }

    /// Shows the drafter what of the batch has become part of the text of `n_text` tokens.
    fn show(&mut self, context: &Context, n_text: usize) -> Result<(), DecodeError> {
        let Some(n_before) = self.unseen.take() else {
            return Ok(());
        };
        let n = n_text.saturating_sub(n_before).min(1 + self.n_right);
        self.seen.clear();
        self.seen.extend(self.batch.tokens()[..n].iter().map(|t| t.token));
        self.drafter.follow(Decoded {
            context,
            first: 0,
            n_before,
            tokens: &self.seen,
        })
    }

    /// Removes drafts from the memory that did not become part of the text of `n_text` tokens.
    pub fn forget_drafts(&mut self, context: &mut Context, seq: usize, n_text: usize) -> Result<(), DecodeError> {
        let shown = self.show(context, n_text);
        self.shadow.clear();
        self.n_made = 0;
        self.n_right = 0;
        self.drafts.clear();
        if context.n_past(seq) > n_text {
            context.seq_rm(seq, n_text..)?;
        }
        shown
    }

    /// Makes drafts, as many as pay.
    fn guess(&mut self, context: &Context, text: &[Token], token: Token) -> Result<(), DecodeError> {
        let params = context.params();
        let most = params.n_outputs_max.min(params.n_ubatch).min(params.n_batch);
        let n_left = match context.is_limited() {
            true => context.n_ctx().saturating_sub(text.len()),
            false => usize::MAX,
        };
        let n = self.pace.choose(most.min(n_left).saturating_sub(1));
        if n == 0 {
            return match self.drafter.is_free() {
                true => self.drafter.draft(text, token, 1, &mut self.shadow),
                false => Ok(()),
            };
        }
        let start = Instant::now();
        self.drafter.draft(text, token, n, &mut self.drafts)?;
        let size = self.pace.batch_size(self.drafts.len());
        self.n_made = self.drafts.len().min(size);
        if !self.drafts.is_empty() {
            self.pace.drafted(self.n_made, start.elapsed().as_secs_f64());
        }
        self.drafts.resize(size, token);
        Ok(())
    }
}

/// The most likely token, if it is likely enough to be a draft.
fn most_likely(logits: &[f32]) -> Option<Token> {
    let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b]))?;
    let sum: f32 = logits.iter().map(|x| (x - logits[best]).exp()).sum();
    (1.0 / sum >= LEAST_PROBABILITY).then_some(best as Token)
}
