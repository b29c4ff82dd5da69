//! Decodes one or more sequences with their drafts.

use std::collections::BTreeMap;
use std::time::Instant;

use super::controller::{Choice, DraftController};
use super::sequence::Sequence;
use super::{Decoded, Drafted, Drafter};
use crate::context::{Batch, Context, DecodeError, SeqSet};
use crate::vocab::Token;

/// A sequence to be extended by one token.
#[derive(Clone, Copy, Debug)]
pub struct Step<'a> {
    /// Id of the sequence.
    pub seq: usize,
    /// All preceding tokens of the sequence.
    pub text: &'a [Token],
    /// Next token.
    pub token: Token,
    /// Number of most likely tokens that suffice as outputs; see [`Batch::limit_last`].
    pub n_best: usize,
    /// Set by [`Speculator::decode`]: index of the logits for the next token, for [`Context::output`]. `None` if the
    /// sequence was rejected; [`Context::rejected`] returns the reason.
    pub row: Option<usize>,
    /// Set by [`Speculator::decode`]: number of drafts decoded after the token.
    pub n_drafts: usize,
}

impl<'a> Step<'a> {
    /// Creates a step that appends `token` to `text`.
    pub fn new(seq: usize, text: &'a [Token], token: Token) -> Step<'a> {
        Step {
            seq,
            text,
            token,
            n_best: 0,
            row: None,
            n_drafts: 0,
        }
    }

    /// Limits the outputs to the `n` most likely tokens; 0 requests all logits.
    #[must_use]
    pub fn limited(self, n: usize) -> Step<'a> {
        Step { n_best: n, ..self }
    }
}

/// Decodes sequences, with drafts if they increase the speed.
///
/// For one sequence, the context needs [`MAX_DRAFTS`](super::MAX_DRAFTS) + 1 outputs and tokens per batch
/// (`n_outputs_max`). Recurrent models need the same number of state checkpoints (`n_rollback`). With less capacity or
/// several sequences, fewer drafts are verified.
///
/// To decode several sequences, call [`Speculator::accept`] for the tokens of each until it returns `None`,
/// then [`Speculator::decode`] with the last token of each.
pub struct Speculator {
    controller: DraftController,
    sequences: BTreeMap<usize, Sequence>,
    /// Sequences of the batch under construction.
    choices: Vec<Choice>,
    batch: Batch,
    /// Maximum number of tokens in a batch with drafts.
    n_tokens_max: usize,
    drafted: Drafted,
    /// Value of `drafted` before the latest decode.
    drafted_before: Drafted,
}

impl Speculator {
    /// Creates a speculator without sequences. `controller` chooses the number of drafts.
    pub fn new(controller: DraftController) -> Speculator {
        Speculator {
            controller,
            sequences: BTreeMap::new(),
            choices: Vec::new(),
            batch: Batch::new(),
            n_tokens_max: usize::MAX,
            drafted: Drafted::default(),
            drafted_before: Drafted::default(),
        }
    }

    /// Limits batches with drafts to `n` tokens.
    #[must_use]
    pub fn within(mut self, n: usize) -> Speculator {
        self.n_tokens_max = n;
        self
    }

    /// Sets the drafter of a sequence.
    #[must_use]
    pub fn with(mut self, seq: usize, drafter: Box<dyn Drafter>) -> Speculator {
        self.insert(seq, drafter);
        self
    }

    /// Like [`Speculator::with`]. Resets the statistics of the sequence; the cache must contain no drafts of
    /// the sequence.
    pub fn insert(&mut self, seq: usize, drafter: Box<dyn Drafter>) {
        let sequence = Sequence::new(Some(drafter), self.controller.stats());
        self.sequences.insert(seq, sequence);
    }

    /// Removes a sequence with `n_text` tokens and its drafts in the cache.
    ///
    /// # Errors
    /// Returns a [`DecodeError`] if the drafter fails, or if drafts cannot be removed from the cache. The sequence is
    /// removed even then.
    pub fn remove(&mut self, context: &mut Context, seq: usize, n_text: usize) -> Result<(), DecodeError> {
        let forgotten = self.forget_drafts(context, seq, n_text);
        self.take(seq);
        forgotten
    }

    /// Removes a sequence and returns its drafter. The cache must contain no drafts of the sequence.
    pub fn take(&mut self, seq: usize) -> Option<Box<dyn Drafter>> {
        let sequence = self.sequences.remove(&seq)?;
        if sequence.has_drafter() {
            self.controller.ended(sequence.stats());
        }
        sequence.into_drafter()
    }

    /// Returns the numbers of verified and accepted drafts of all sequences.
    pub fn drafted(&self) -> Drafted {
        self.drafted
    }

    /// Appends the token of a step to its sequence, and returns the index of the logits for the next token, for
    /// [`Context::output`]. Decodes only if the token was not an accepted draft. On error, the token is not appended.
    pub fn advance(&mut self, context: &mut Context, step: Step<'_>) -> Result<usize, DecodeError> {
        if let Some(row) = self.accept(step.seq, step.token) {
            return Ok(row);
        }
        let mut step = [step];
        self.decode(context, &mut step)?;
        // A batch with only rejected sequences is an error.
        Ok(step[0].row.unwrap_or_default())
    }

    /// Records that `token` was sampled for a sequence. If the token equals the next draft, returns the index of the
    /// logits for the following token, for [`Context::logits`]. Otherwise the token must be decoded.
    pub fn accept(&mut self, seq: usize, token: Token) -> Option<usize> {
        let row = self.sequences.get_mut(&seq)?.accept(token)?;
        self.drafted.n_right += 1;
        Some(row)
    }

    /// Decodes one token for each of several sequences, with drafts. This invalidates the logits of all other
    /// sequences and removes their unaccepted drafts. On error, the sequences are unchanged.
    pub fn decode(&mut self, context: &mut Context, steps: &mut [Step<'_>]) -> Result<(), DecodeError> {
        self.settle(context, steps)?;
        self.controller
            .yielded(self.drafted.n_right - self.drafted_before.n_right);
        self.drafted_before = self.drafted;
        self.choose(context, steps);
        self.batch.clear();
        let guessed = self.fill(steps);
        let start = Instant::now();
        let decoded = guessed.and_then(|()| context.decode(&self.batch));
        if decoded.is_err() {
            for step in steps.iter_mut() {
                step.row = None;
                self.sequences.entry(step.seq).and_modify(Sequence::reset);
            }
            return decoded;
        }
        let n_drafts = self.batch.len() - steps.len();
        self.controller
            .decoded(self.batch.len(), n_drafts, start.elapsed().as_secs_f64());
        for step in steps.iter_mut() {
            self.decoded(context, step);
        }
        Ok(())
    }

    /// Removes the rejected drafts of the given sequences, and the drafts of other sequences whose logits the
    /// batch replaces.
    fn settle(&mut self, context: &mut Context, steps: &[Step<'_>]) -> Result<(), DecodeError> {
        for (&seq, sequence) in &mut self.sequences {
            let step = steps.iter().find(|step| step.seq == seq);
            if let Some(n_text) = step.map(|step| step.text.len()).or_else(|| sequence.n_text()) {
                sequence.forget_drafts(context, &self.batch, seq, n_text)?;
            }
        }
        Ok(())
    }

    /// Chooses the number of drafts for each sequence.
    fn choose(&mut self, context: &Context, steps: &[Step<'_>]) {
        let params = context.params();
        let most = params.n_outputs_max.min(params.n_ubatch).min(params.n_batch);
        let most = most.min(self.n_tokens_max);
        let n_left = |used: usize| {
            if context.is_limited() {
                context.n_ctx().saturating_sub(used)
            } else {
                usize::MAX
            }
        };
        self.choices.clear();
        for step in steps {
            let sequence = self
                .sequences
                .entry(step.seq)
                .or_insert_with(|| Sequence::new(None, self.controller.stats()));
            let n_free = if sequence.has_drafter() {
                n_left(step.text.len()).saturating_sub(1)
            } else {
                0
            };
            self.choices.push(Choice::new(sequence.stats(), n_free));
        }
        let n_free = most.min(n_left(context.n_used())).saturating_sub(steps.len());
        self.controller.choose(&mut self.choices, n_free);
    }

    /// Fills the batch with tokens and drafts.
    fn fill(&mut self, steps: &mut [Step<'_>]) -> Result<(), DecodeError> {
        let alone = steps.len() == 1;
        for (step, choice) in steps.iter_mut().zip(&self.choices) {
            let Some(sequence) = self.sequences.get_mut(&step.seq) else {
                continue;
            };
            sequence.guess(&mut self.controller, step.text, step.token, choice.n_drafts(), alone)?;
            step.row = Some(sequence.push(&mut self.batch, step.seq, step.text.len(), (step.token, step.n_best)));
        }
        Ok(())
    }

    /// Records the result of a step.
    fn decoded(&mut self, context: &Context, step: &mut Step<'_>) {
        let set = SeqSet::one(step.seq);
        let is_rejected = set.is_empty()
            || context
                .rejected()
                .iter()
                .any(|rejection| rejection.seqs.intersects(set));
        let (Some(first), Some(sequence)) = (step.row, self.sequences.get_mut(&step.seq)) else {
            return;
        };
        if is_rejected {
            step.row = None;
            sequence.reset();
            return;
        }
        step.n_drafts = sequence.decoded(first, step.text.len());
        self.drafted.n_drafts += step.n_drafts;
    }

    /// Passes tokens that were decoded without drafts, such as a prompt, to a sequence's drafter.
    ///
    /// # Errors
    /// Returns a [`DecodeError`] if the drafter fails to decode the tokens.
    pub fn follow(&mut self, seq: usize, decoded: Decoded<'_>) -> Result<(), DecodeError> {
        match self.sequences.get_mut(&seq) {
            Some(sequence) => sequence.follow(decoded),
            None => Ok(()),
        }
    }

    /// Removes rejected drafts from the cache of a sequence with `n_text` tokens.
    ///
    /// # Errors
    /// Returns a [`DecodeError`] if the drafter fails, or if drafts cannot be removed from the cache.
    pub fn forget_drafts(&mut self, context: &mut Context, seq: usize, n_text: usize) -> Result<(), DecodeError> {
        match self.sequences.get_mut(&seq) {
            Some(sequence) => sequence.forget_drafts(context, &self.batch, seq, n_text),
            None => Ok(()),
        }
    }
}
