//! One sequence's drafts: which tokens the context computed for it ahead of its text, and how many of them were right.

use std::time::Instant;

use super::pace::{Luck, Pace, batch_size};
use super::{Decoded, Drafter, MAX_DRAFTS};
use crate::context::{Batch, Context, DecodeError, SeqSet};
use crate::vocab::Token;

/// What is known of a sequence's drafts.
pub(super) struct Sequence {
    drafter: Option<Box<dyn Drafter>>,
    luck: Luck,
    /// The drafts in the context's memory: behind the last token decoded.
    drafts: Vec<Token>,
    /// How many of them were made, and not only added to fill a batch.
    n_made: usize,
    /// How many of them turned out to be right.
    n_right: usize,
    /// Where its tokens stand in the batch decoded last, and how many its text had before them. The drafter has not been shown yet what became
    /// of them.
    latest: Option<(usize, usize)>,
    /// Tokens that the drafter is shown.
    seen: Vec<Token>,
    /// What would have been drafted where nothing was.
    shadow: Vec<Token>,
}

impl Sequence {
    /// A sequence without drafts so far, of which so much luck is expected; without a drafter it never has any.
    pub fn new(drafter: Option<Box<dyn Drafter>>, luck: Luck) -> Sequence {
        Sequence {
            drafter,
            luck,
            drafts: Vec::with_capacity(MAX_DRAFTS),
            n_made: 0,
            n_right: 0,
            latest: None,
            seen: Vec::with_capacity(MAX_DRAFTS + 1),
            shadow: Vec::with_capacity(MAX_DRAFTS),
        }
    }

    /// How right its drafts were.
    pub fn luck(&self) -> Luck {
        self.luck
    }

    /// True if it may have drafts.
    pub fn has_drafter(&self) -> bool {
        self.drafter.is_some()
    }

    /// Its drafter.
    pub fn into_drafter(self) -> Option<Box<dyn Drafter>> {
        self.drafter
    }

    /// Takes note that `token` came next. Where its logits stand, if it is the next draft.
    pub fn accept(&mut self, token: Token) -> Option<usize> {
        let Some(&draft) = self.drafts.get(self.n_right) else {
            if let Some(shadow) = self.shadow.pop() {
                self.luck.judged(shadow == token);
            }
            return None;
        };
        let is_right = draft == token;
        if self.n_right < self.n_made {
            self.luck.judged(is_right);
        }
        if !is_right {
            // None after it can be right.
            self.drafts.truncate(self.n_right);
            return None;
        }
        self.n_right += 1;
        self.latest.map(|(first, _)| first + self.n_right)
    }

    /// Shows the drafter tokens that were decoded otherwise than with drafts.
    pub fn follow(&mut self, decoded: Decoded<'_>) -> Result<(), DecodeError> {
        match &mut self.drafter {
            Some(drafter) => drafter.follow(decoded),
            None => Ok(()),
        }
    }

    /// The length of the text, by what was accepted of the batch decoded last; none before there was one.
    pub fn n_text(&self) -> Option<usize> {
        self.latest.map(|(_, n_before)| n_before + 1 + self.n_right)
    }

    /// Removes drafts from the memory that did not become part of the text of `n_text` tokens. `batch` is the one decoded last.
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

    /// Shows the drafter what of the batch has become part of the text of `n_text` tokens.
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

    /// Knows of no drafts any more.
    pub fn reset(&mut self) {
        self.latest = None;
        self.shadow.clear();
        self.n_made = 0;
        self.n_right = 0;
        self.drafts.clear();
    }

    /// Makes at most `n` drafts behind `text` and `token`; alone in its batch, as many as some graph is for.
    pub fn guess(
        &mut self,
        pace: &mut Pace,
        text: &[Token],
        token: Token,
        n: usize,
        alone: bool,
    ) -> Result<(), DecodeError> {
        let Some(drafter) = &mut self.drafter else {
            return Ok(());
        };
        if n == 0 {
            return match drafter.is_free() {
                true => drafter.draft(text, token, 1, &mut self.shadow),
                false => Ok(()),
            };
        }
        let start = Instant::now();
        drafter.draft(text, token, n, &mut self.drafts)?;
        let size = match alone {
            true => batch_size(self.drafts.len()),
            false => self.drafts.len(),
        };
        self.n_made = self.drafts.len().min(size);
        if !self.drafts.is_empty() {
            pace.drafted(self.n_made, start.elapsed().as_secs_f64());
        }
        self.drafts.resize(size, token);
        Ok(())
    }

    /// Adds `token`, which follows `n_text` others, and the drafts to a batch; the place of `token` there.
    pub fn push(&self, batch: &mut Batch, seq: usize, n_text: usize, token: Token) -> usize {
        let first = batch.len();
        for (i, &token) in [token].iter().chain(&self.drafts).enumerate() {
            batch.push(token, n_text + i, SeqSet::one(seq), true);
        }
        first
    }

    /// The tokens that [`Sequence::push`] added were decoded. The number of drafts among them.
    pub fn decoded(&mut self, first: usize, n_text: usize) -> usize {
        self.latest = Some((first, n_text));
        self.luck.decoded(self.drafts.len());
        self.drafts.len()
    }
}
