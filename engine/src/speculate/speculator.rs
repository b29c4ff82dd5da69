//! Sequences decoded together, each with as many drafts as pay.

use std::collections::BTreeMap;
use std::time::Instant;

use super::pace::{Choice, Pace};
use super::sequence::Sequence;
use super::{Decoded, Drafted, Drafter};
use crate::context::{Batch, Context, DecodeError, SeqSet};
use crate::vocab::Token;

/// A sequence that goes on by a token.
#[derive(Clone, Copy, Debug)]
pub struct Step<'a> {
    /// The sequence.
    pub seq: usize,
    /// All that it has.
    pub text: &'a [Token],
    /// What follows.
    pub token: Token,
    /// Set by [`Speculator::decode`]: the index by which [`Context::logits`] has the logits after the token; `None` if the sequence was
    /// rejected, for which [`Context::rejected`] has the reason.
    pub row: Option<usize>,
    /// Set by [`Speculator::decode`]: drafts that were decoded behind the token.
    pub n_drafts: usize,
}

impl<'a> Step<'a> {
    /// `token` is to follow `text`.
    pub fn new(seq: usize, text: &'a [Token], token: Token) -> Step<'a> {
        Step {
            seq,
            text,
            token,
            row: None,
            n_drafts: 0,
        }
    }
}

/// Decodes the tokens of sequences, with drafts where they pay.
///
/// For one sequence the context needs [`MAX_DRAFTS`](super::MAX_DRAFTS) + 1 outputs and tokens in a batch, and, for recurrent models, as many states to go
/// back to (`n_outputs_max`, `n_rollback`). With fewer, and for several sequences, as many drafts are verified as there is room for.
///
/// A batch of several sequences: each takes tokens by [`Speculator::accept`] as long as they are drafts; then those that wait with another token are
/// decoded together.
pub struct Speculator {
    pace: Pace,
    sequences: BTreeMap<usize, Sequence>,
    /// Sequences of the batch that is being made.
    choices: Vec<Choice>,
    batch: Batch,
    /// Most tokens of it where it has drafts.
    n_most: usize,
    drafted: Drafted,
    /// The same before the latest decode.
    drafted_before: Drafted,
}

impl Speculator {
    /// No sequence has drafts yet. As many are verified at once as `pace` says.
    pub fn new(pace: Pace) -> Speculator {
        Speculator {
            pace,
            sequences: BTreeMap::new(),
            choices: Vec::new(),
            batch: Batch::new(),
            n_most: usize::MAX,
            drafted: Drafted::default(),
            drafted_before: Drafted::default(),
        }
    }

    /// Batches with drafts have at most `n` tokens.
    #[must_use]
    pub fn within(mut self, n: usize) -> Speculator {
        self.n_most = n;
        self
    }

    /// A sequence's drafts come from `drafter`.
    #[must_use]
    pub fn with(mut self, seq: usize, drafter: Box<dyn Drafter>) -> Speculator {
        self.insert(seq, drafter);
        self
    }

    /// As [`Speculator::with`]. What was known of the sequence is forgotten; the memory must hold no drafts of it.
    pub fn insert(&mut self, seq: usize, drafter: Box<dyn Drafter>) {
        let sequence = Sequence::new(Some(drafter), self.pace.luck());
        self.sequences.insert(seq, sequence);
    }

    /// Knows of a sequence no more, whose text has `n_text` tokens.
    pub fn remove(&mut self, context: &mut Context, seq: usize, n_text: usize) -> Result<(), DecodeError> {
        let forgotten = self.forget_drafts(context, seq, n_text);
        self.take(seq);
        forgotten
    }

    /// Knows of a sequence no more, and gives back its drafter; the memory must hold no drafts of it.
    pub fn take(&mut self, seq: usize) -> Option<Box<dyn Drafter>> {
        let sequence = self.sequences.remove(&seq)?;
        if sequence.has_drafter() {
            self.pace.ended(sequence.luck());
        }
        sequence.into_drafter()
    }

    /// What became of drafts so far, those of all sequences.
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
        if let Some(row) = self.accept(seq, token) {
            return Ok(row);
        }
        let mut step = [Step::new(seq, text, token)];
        self.decode(context, &mut step)?;
        // A batch of rejected sequences only is an error.
        Ok(step[0].row.unwrap_or_default())
    }

    /// Takes note that `token` follows the text of a sequence: the index by which [`Context::logits`] has the logits after it, if it was a draft. If not, it
    /// is to be decoded.
    pub fn accept(&mut self, seq: usize, token: Token) -> Option<usize> {
        let row = self.sequences.get_mut(&seq)?.accept(token)?;
        self.drafted.n_right += 1;
        Some(row)
    }

    /// Decodes a token of each of some sequences, with drafts behind them. Logits of other sequences are gone, as after any decode, and drafts
    /// of theirs that were not accepted. An error leaves the sequences with their texts.
    pub fn decode(&mut self, context: &mut Context, steps: &mut [Step<'_>]) -> Result<(), DecodeError> {
        self.settle(context, steps)?;
        self.pace.yielded(self.drafted.n_right - self.drafted_before.n_right);
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
        self.pace
            .decoded(self.batch.len(), n_drafts, start.elapsed().as_secs_f64());
        for step in steps.iter_mut() {
            self.decoded(context, step);
        }
        Ok(())
    }

    /// Removes the drafts that did not become text: those that a batch would follow, and those whose logits it would replace.
    fn settle(&mut self, context: &mut Context, steps: &[Step<'_>]) -> Result<(), DecodeError> {
        for (&seq, sequence) in &mut self.sequences {
            let step = steps.iter().find(|step| step.seq == seq);
            if let Some(n_text) = step.map(|step| step.text.len()).or_else(|| sequence.n_text()) {
                sequence.forget_drafts(context, &self.batch, seq, n_text)?;
            }
        }
        Ok(())
    }

    /// Chooses how many drafts each sequence is to have.
    fn choose(&mut self, context: &Context, steps: &[Step<'_>]) {
        let params = context.params();
        let most = params.n_outputs_max.min(params.n_ubatch).min(params.n_batch);
        let most = most.min(self.n_most);
        let n_left = |used: usize| match context.is_limited() {
            true => context.n_ctx().saturating_sub(used),
            false => usize::MAX,
        };
        self.choices.clear();
        for step in steps {
            let sequence = self
                .sequences
                .entry(step.seq)
                .or_insert_with(|| Sequence::new(None, self.pace.luck()));
            let n_room = match sequence.has_drafter() {
                true => n_left(step.text.len()).saturating_sub(1),
                false => 0,
            };
            self.choices.push(Choice::new(sequence.luck(), n_room));
        }
        let n_room = most.min(n_left(context.n_used())).saturating_sub(steps.len());
        self.pace.choose(&mut self.choices, n_room);
    }

    /// Makes the batch: tokens and drafts.
    fn fill(&mut self, steps: &mut [Step<'_>]) -> Result<(), DecodeError> {
        let alone = steps.len() == 1;
        for (step, choice) in steps.iter_mut().zip(&self.choices) {
            let Some(sequence) = self.sequences.get_mut(&step.seq) else {
                continue;
            };
            sequence.guess(&mut self.pace, step.text, step.token, choice.n_drafts(), alone)?;
            step.row = Some(sequence.push(&mut self.batch, step.seq, step.text.len(), step.token));
        }
        Ok(())
    }

    /// Takes note of what became of a step.
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

    /// Shows a sequence's drafter tokens that were decoded otherwise than with drafts, as those of a prompt are.
    pub fn follow(&mut self, seq: usize, decoded: Decoded<'_>) -> Result<(), DecodeError> {
        match self.sequences.get_mut(&seq) {
            Some(sequence) => sequence.follow(decoded),
            None => Ok(()),
        }
    }

    /// Removes drafts from the memory that did not become part of the text of `n_text` tokens.
    pub fn forget_drafts(&mut self, context: &mut Context, seq: usize, n_text: usize) -> Result<(), DecodeError> {
        match self.sequences.get_mut(&seq) {
            Some(sequence) => sequence.forget_drafts(context, &self.batch, seq, n_text),
            None => Ok(()),
        }
    }
}
