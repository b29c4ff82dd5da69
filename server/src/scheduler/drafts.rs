//! Speculative decoding: one decode verifies several drafted tokens per sequence. Rejected drafts are removed
//! within the step, so other code never sees them.

use engine::context::{Context, DecodeError};
use engine::sample::Token;
use engine::speculate::{Decoded, DraftController, Drafter, Lookup, Speculator, Step as Next};

use super::batcher::{Batcher, error_message};
use super::generation::Step;
use super::prefill_budget::SMALL_BATCH;

/// Configuration of speculative decoding.
pub struct Speculation {
    /// Controller that chooses the number of drafted tokens.
    pub controller: DraftController,
    /// Source of drafts.
    pub drafters: Drafters,
}

/// Kinds of draft sources.
pub enum Drafters {
    /// Prompt lookup; each completion starts with a copy of this table.
    Lookup(Lookup),
    /// Pool of drafters, each for one completion at a time. Completions without a drafter decode normally.
    Some(Vec<Box<dyn Drafter>>),
}

impl Drafters {
    /// Takes an idle drafter.
    pub fn take(&mut self) -> Option<Box<dyn Drafter>> {
        match self {
            Drafters::Lookup(lookup) => Some(Box::new(lookup.clone())),
            Drafters::Some(idle) => idle.pop(),
        }
    }

    /// Returns a drafter to the pool.
    fn give_back(&mut self, drafter: Box<dyn Drafter>) {
        match self {
            // The table contains the completion's own tokens, so it is dropped.
            Drafters::Lookup(_) => {}
            Drafters::Some(idle) => idle.push(drafter),
        }
    }
}

/// Id of a completion: arrival number of the job, index of the choice.
pub type CompletionId = (u64, usize);

/// State of speculative decoding.
pub struct Drafts {
    speculator: Speculator,
    drafters: Drafters,
    /// Sequences with a drafter, and the completion it drafts for.
    given: Vec<(usize, CompletionId)>,
}

impl Drafts {
    /// Creates the state without assigned drafters.
    pub fn new(speculation: Speculation) -> Drafts {
        Drafts {
            // Beyond this batch size, matmuls round differently than for single tokens.
            speculator: Speculator::new(speculation.controller).within(SMALL_BATCH),
            drafters: speculation.drafters,
            given: Vec::new(),
        }
    }

    /// Takes drafters back from finished completions and assigns idle drafters to completions without one.
    pub fn assign(&mut self, running: &[(usize, CompletionId)]) {
        for entry in self.given.extract_if(.., |entry| !running.contains(entry)) {
            if let Some(drafter) = self.speculator.take(entry.0) {
                self.drafters.give_back(drafter);
            }
        }
        for entry in running {
            if self.given.contains(entry) {
                continue;
            }
            let Some(drafter) = self.drafters.take() else { return };
            self.speculator.insert(entry.0, drafter);
            self.given.push(*entry);
        }
    }

    /// Drops all assigned drafters, whose state may be inconsistent after a panic.
    pub fn reset(&mut self) {
        for (seq, _) in self.given.drain(..) {
            self.speculator.take(seq);
        }
    }

    /// Feeds a drafter the tokens that were decoded without drafts.
    pub fn follow(&mut self, seq: usize, decoded: Decoded<'_>) {
        if self.speculator.follow(seq, decoded).is_err() {
            // A failed drafter is dropped; the completion continues without drafts.
            self.speculator.take(seq);
        }
    }

    /// Removes rejected drafts from the memory.
    fn forget_drafts(&mut self, context: &mut Context, seq: usize, n_text: usize) -> Result<(), DecodeError> {
        self.speculator.forget_drafts(context, seq, n_text)
    }
}

impl Batcher {
    /// Assigns drafters to running completions, while idle drafters are available.
    pub(super) fn assign_drafters(&mut self) {
        let Some(drafts) = &mut self.drafts else { return };
        let running = self.running.iter().filter_map(|r| Some((r.seq, r.completion_id()?)));
        drafts.assign(&running.collect::<Vec<_>>());
    }

    /// Decodes the next token of each completion in `at` together with its drafts, and samples as long as the
    /// drafts are accepted. Returns false, without changes, if drafting is not possible.
    pub(super) fn decode_with_drafts(&mut self, at: &[usize]) -> bool {
        let Some(drafts) = &mut self.drafts else { return false };
        let next = |&at: &usize| {
            let running = &self.running[at];
            let (&token, text) = running.job.tokens.split_last()?;
            Some(Next::new(running.seq, text, token))
        };
        let mut steps: Vec<Next<'_>> = at.iter().filter_map(next).collect();
        if steps.is_empty() || drafts.speculator.decode(&mut self.context, &mut steps).is_err() {
            return false;
        }
        let rows: Vec<(usize, Option<usize>, usize)> = (at.iter().zip(&steps))
            .map(|(&at, step)| (at, step.row, step.n_drafts))
            .collect();
        self.metrics.n_decode.add(1);
        let (mut over, mut failed) = (Vec::new(), Vec::new());
        for &(at, row, n_drafts) in &rows {
            match row {
                Some(row) if self.accept_drafts(at, row, n_drafts) => {}
                Some(_) => over.push(at),
                None => failed.push((at, self.rejection_reason(self.running[at].seq))),
            }
        }
        for (at, ..) in rows {
            let seq = self.running[at].seq;
            let (n_text, drafts) = (self.sequences.tokens_of(seq).len(), self.drafts.as_mut());
            let forgotten = drafts.map_or(Ok(()), |drafts| drafts.forget_drafts(&mut self.context, seq, n_text));
            if let Err(error) = forgotten
                && !over.contains(&at)
            {
                failed.push((at, error_message(&error)));
            }
        }
        self.finish_jobs(over, failed);
        true
    }

    /// Samples tokens from the logits at `row` while they match the drafts. Returns false if the completion
    /// has ended.
    fn accept_drafts(&mut self, at: usize, mut row: usize, n_drafts: usize) -> bool {
        let running = &mut self.running[at];
        let (seq, job) = (running.seq, &mut running.job);
        let Some((&token, generation)) = job.tokens.last().zip(job.generations.first_mut()) else {
            return false;
        };
        self.sequences.extend(seq, &[token]);
        generation.drafted.n_drafts += n_drafts;
        self.metrics.n_drafts.add(n_drafts);
        let mut continues_last = true;
        while continues_last {
            let logits = self.context.logits(row).unwrap_or_default();
            let token: Token = match generation.next(logits, self.model.vocab(), &mut self.candidates) {
                Step::On(token) => token,
                Step::Over => {
                    continues_last = false;
                    break;
                }
            };
            job.tokens.push(token);
            let drafts = self.drafts.as_mut();
            let Some(next) = drafts.and_then(|drafts| drafts.speculator.accept(seq, token)) else {
                break;
            };
            self.sequences.extend(seq, &[token]);
            generation.drafted.n_right += 1;
            self.metrics.n_right.add(1);
            row = next;
        }
        self.metrics.n_tokens_max.raise(self.sequences.tokens_of(seq).len());
        continues_last
    }

    /// Returns why a sequence was rejected by the last decode.
    fn rejection_reason(&self, seq: usize) -> String {
        let all = self.context.rejected();
        let found = all.iter().find(|rejection| rejection.seqs.contains(seq));
        found.map_or_else(String::new, |rejection| error_message(&rejection.error))
    }
}
