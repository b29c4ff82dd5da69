//! State of speculative decoding: the drafters, and the completion that each of them drafts for.

use engine::context::{Context, DecodeError};
use engine::sample::Token;
use engine::speculate::{Decoded, DraftController, Drafter, Lookup, Speculator, Step};

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

    /// Decodes the next token of each sequence together with its drafts. Returns false, without changes, if
    /// drafting is not possible.
    pub fn decode(&mut self, context: &mut Context, steps: &mut [Step<'_>]) -> bool {
        self.speculator.decode(context, steps).is_ok()
    }

    /// Compares a sampled token with the next draft. Returns the row with the logits after the draft if they
    /// are equal.
    pub fn accept(&mut self, seq: usize, token: Token) -> Option<usize> {
        self.speculator.accept(seq, token)
    }

    /// Removes rejected drafts from the memory.
    pub fn forget_drafts(&mut self, context: &mut Context, seq: usize, n_text: usize) -> Result<(), DecodeError> {
        self.speculator.forget_drafts(context, seq, n_text)
    }
}
