//! Drafts of one sequence: tokens that the context decoded ahead, and how many were accepted.

use std::time::Instant;

use super::controller::{AcceptanceStats, DraftController, batch_size};
use super::{Decoded, Drafter, MAX_DRAFTS};
use crate::context::{Batch, Context, DecodeError, SeqSet};
use crate::vocab::Token;

/// State of a sequence's drafts.
pub(super) struct Sequence {
    drafter: Option<Box<dyn Drafter>>,
    stats: AcceptanceStats,
    /// Drafts in the context's cache, after the last accepted token.
    drafts: Vec<Token>,
    /// Number of drafts that the drafter made; the remaining ones pad the batch.
    n_made: usize,
    /// Number of accepted drafts.
    n_right: usize,
    /// Index of the sequence's first token in the last batch, and the number of tokens before it.
    latest: Option<(usize, usize)>,
    /// Scratch buffer for the tokens passed to the drafter.
    seen: Vec<Token>,
    /// Draft made for statistics only, when no draft was verified.
    shadow: Vec<Token>,
}

impl Sequence {
    /// Creates a sequence with initial statistics. Without a drafter, it never gets drafts.
    pub fn new(drafter: Option<Box<dyn Drafter>>, stats: AcceptanceStats) -> Sequence {
        Sequence {
            drafter,
            stats,
            drafts: Vec::with_capacity(MAX_DRAFTS),
            n_made: 0,
            n_right: 0,
            latest: None,
            seen: Vec::with_capacity(MAX_DRAFTS + 1),
            shadow: Vec::with_capacity(MAX_DRAFTS),
        }
    }

    /// Returns the acceptance statistics.
    pub fn stats(&self) -> AcceptanceStats {
        self.stats
    }

    /// Returns true if the sequence has a drafter.
    pub fn has_drafter(&self) -> bool {
        self.drafter.is_some()
    }

    /// Returns the drafter.
    pub fn into_drafter(self) -> Option<Box<dyn Drafter>> {
        self.drafter
    }

    /// Records that `token` was sampled. If it matches the next draft, returns the index of its logits in the
    /// last batch.
    pub fn accept(&mut self, token: Token) -> Option<usize> {
        let Some(&draft) = self.drafts.get(self.n_right) else {
            if let Some(shadow) = self.shadow.pop() {
                self.stats.judged(shadow == token);
            }
            return None;
        };
        let is_right = draft == token;
        if self.n_right < self.n_made {
            self.stats.judged(is_right);
        }
        if !is_right {
            // Drafts after a mismatch cannot be accepted.
            self.drafts.truncate(self.n_right);
            return None;
        }
        self.n_right += 1;
        self.latest.map(|(first, _)| first + self.n_right)
    }

    /// Passes tokens that were decoded without drafts to the drafter.
    pub fn follow(&mut self, decoded: Decoded<'_>) -> Result<(), DecodeError> {
        match &mut self.drafter {
            Some(drafter) => drafter.follow(decoded),
            None => Ok(()),
        }
    }

    /// Returns the length of the sequence according to the accepted tokens of the last batch; `None` before
    /// the first batch.
    pub fn n_text(&self) -> Option<usize> {
        self.latest.map(|(_, n_before)| n_before + 1 + self.n_right)
    }

    /// Removes rejected drafts from the cache of a sequence with `n_text` tokens. `batch` is the last decoded
    /// batch.
    pub fn forget_drafts(
        &mut self,
        context: &mut Context,
        batch: &Batch,
        seq: usize,
        n_text: usize,
    ) -> Result<(), DecodeError> {
        let shown = self.show(context, batch, n_text);
        self.reset();
        if context.n_past(seq) > n_text {
            context.seq_rm(seq, n_text..)?;
        }
        shown
    }

    /// Passes the accepted tokens of the batch to the drafter; the sequence has `n_text` tokens.
    fn show(&mut self, context: &Context, batch: &Batch, n_text: usize) -> Result<(), DecodeError> {
        let (Some((first, n_before)), Some(drafter)) = (self.latest.take(), &mut self.drafter) else {
            return Ok(());
        };
        let n = n_text.saturating_sub(n_before).min(1 + self.n_right);
        self.seen.clear();
        self.seen
            .extend(batch.tokens()[first..first + n].iter().map(|t| t.token));
        drafter.follow(Decoded {
            context,
            first,
            n_before,
            tokens: &self.seen,
        })
    }

    /// Clears all drafts.
    pub fn reset(&mut self) {
        self.latest = None;
        self.shadow.clear();
        self.n_made = 0;
        self.n_right = 0;
        self.drafts.clear();
    }

    /// Makes up to `n` drafts after `text` and `token`. A single sequence is padded or truncated to a batch
    /// size with a cached graph.
    pub fn guess(
        &mut self,
        controller: &mut DraftController,
        text: &[Token],
        token: Token,
        n: usize,
        alone: bool,
    ) -> Result<(), DecodeError> {
        let Some(drafter) = &mut self.drafter else {
            return Ok(());
        };
        if n == 0 {
            return if drafter.is_free() {
                drafter.draft(text, token, 1, &mut self.shadow)
            } else {
                Ok(())
            };
        }
        let start = Instant::now();
        drafter.draft(text, token, n, &mut self.drafts)?;
        let size = if alone {
            batch_size(self.drafts.len())
        } else {
            self.drafts.len()
        };
        self.n_made = self.drafts.len().min(size);
        if !self.drafts.is_empty() {
            controller.drafted(self.n_made, start.elapsed().as_secs_f64());
        }
        self.drafts.resize(size, token);
        Ok(())
    }

    /// Adds `token`, at position `n_text`, and its drafts to a batch, with outputs limited to `n_best` tokens. Returns
    /// the index of `token` in the batch.
    pub fn push(&self, batch: &mut Batch, seq: usize, n_text: usize, (token, n_best): (Token, usize)) -> usize {
        let first = batch.len();
        for (i, &token) in [token].iter().chain(&self.drafts).enumerate() {
            batch.push(token, n_text + i, SeqSet::one(seq), true);
            batch.limit_last(n_best);
        }
        first
    }

    /// Records that the tokens added by [`Sequence::push`] were decoded. Returns the number of drafts among
    /// them.
    pub fn decoded(&mut self, first: usize, n_text: usize) -> usize {
        self.latest = Some((first, n_text));
        self.stats.decoded(self.drafts.len());
        self.drafts.len()
    }
}
