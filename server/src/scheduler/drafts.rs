//! Texts under way with drafts: one decode verifies several tokens of each, where that pays. Between two steps the memory holds no drafts, so whatever else
//! is done with sequences knows nothing of them.

use engine::context::{Context, DecodeError};
use engine::sample::Token;
use engine::speculate::{Decoded, Drafter, Lookup, Pace, Speculator, Step as Next};

use super::batcher::{Batcher, sentence};
use super::generation::Step;
use super::share::FEW;

/// How tokens are guessed.
pub struct Speculation {
    /// How many of them pay.
    pub pace: Pace,
    /// Where they come from.
    pub drafters: Drafters,
}

/// Where drafts come from.
pub enum Drafters {
    /// Each text begins with a copy of this table.
    Lookup(Lookup),
    /// Each drafts for one text at a time; texts for which none is left have no drafts.
    Some(Vec<Box<dyn Drafter>>),
}

impl Drafters {
    /// One that drafts for no text now.
    pub fn take(&mut self) -> Option<Box<dyn Drafter>> {
        match self {
            Drafters::Lookup(lookup) => Some(Box::new(lookup.clone())),
            Drafters::Some(idle) => idle.pop(),
        }
    }

    /// Takes one back.
    fn back(&mut self, drafter: Box<dyn Drafter>) {
        match self {
            // What it has looked at is the text's own.
            Drafters::Lookup(_) => {}
            Drafters::Some(idle) => idle.push(drafter),
        }
    }
}

/// A text among all: the number of its request, and of the continuation.
pub type TextId = (u64, usize);

/// Drafters at work.
pub struct Drafts {
    speculator: Speculator,
    drafters: Drafters,
    /// Sequences with a drafter, and the text that it is for.
    given: Vec<(usize, TextId)>,
}

impl Drafts {
    /// No text has drafts yet.
    pub fn new(speculation: Speculation) -> Drafts {
        Drafts {
            // Further columns of a product would be rounded in another way than those of single tokens.
            speculator: Speculator::new(speculation.pace).within(FEW),
            drafters: speculation.drafters,
            given: Vec::new(),
        }
    }

    /// Takes drafters back from texts that are not `running`, and gives some to those that have none.
    pub fn hand_out(&mut self, running: &[(usize, TextId)]) {
        for entry in self.given.extract_if(.., |entry| !running.contains(entry)) {
            if let Some(drafter) = self.speculator.take(entry.0) {
                self.drafters.back(drafter);
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

    /// Nothing is known any more: of drafters that may have been in the middle of something only their tables are sure.
    pub fn begin_anew(&mut self) {
        for (seq, _) in self.given.drain(..) {
            self.speculator.take(seq);
        }
    }

    /// Shows a sequence's drafter tokens that were decoded without drafts.
    pub fn follow(&mut self, seq: usize, decoded: Decoded<'_>) {
        if self.speculator.follow(seq, decoded).is_err() {
            // It cannot be used any more. The text goes on without.
            self.speculator.take(seq);
        }
    }

    /// Takes the drafts out of the memory that did not become text.
    fn forget_drafts(&mut self, context: &mut Context, seq: usize, n_text: usize) -> Result<(), DecodeError> {
        self.speculator.forget_drafts(context, seq, n_text)
    }
}

impl Batcher {
    /// Sees to it that texts under way have drafters, as far as there are some.
    pub(super) fn hand_out_drafters(&mut self) {
        let Some(drafts) = &mut self.drafts else { return };
        let running = self.running.iter().filter_map(|r| Some((r.seq, r.text_id()?)));
        drafts.hand_out(&running.collect::<Vec<_>>());
    }

    /// Computes the next token of each of the texts `at`, with drafts behind them, and lets them go on as far as those were right. False if it cannot be
    /// done with drafts; nothing has changed then.
    pub(super) fn decode_with_drafts(&mut self, at: &[usize]) -> bool {
        let Some(drafts) = &mut self.drafts else { return false };
        let next = |&at: &usize| {
            let running = &self.running[at];
            let (&token, text) = running.work.tokens.split_last()?;
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
                Some(row) if self.go_ahead(at, row, n_drafts) => {}
                Some(_) => over.push(at),
                None => failed.push((at, self.why_rejected(self.running[at].seq))),
            }
        }
        for (at, ..) in rows {
            let seq = self.running[at].seq;
            let (n_text, drafts) = (self.sequences.held(seq).len(), self.drafts.as_mut());
            let forgotten = drafts.map_or(Ok(()), |drafts| drafts.forget_drafts(&mut self.context, seq, n_text));
            if let Err(error) = forgotten
                && !over.contains(&at)
            {
                failed.push((at, sentence(&error)));
            }
        }
        self.end_works(over, failed);
        true
    }

    /// Chooses tokens of a text by the logits from `row` on, as long as they were drafted. False if the text is over.
    fn go_ahead(&mut self, at: usize, mut row: usize, n_drafts: usize) -> bool {
        let running = &mut self.running[at];
        let (seq, work) = (running.seq, &mut running.work);
        let Some((&token, generation)) = work.tokens.last().zip(work.generations.first_mut()) else {
            return false;
        };
        self.sequences.extend(seq, &[token]);
        generation.drafted.n_drafts += n_drafts;
        self.metrics.n_drafts.add(n_drafts);
        let mut goes_on = true;
        while goes_on {
            let logits = self.context.logits(row).unwrap_or_default();
            let token: Token = match generation.next(logits, self.model.vocab(), &mut self.candidates) {
                Step::On(token) => token,
                Step::Over => {
                    goes_on = false;
                    break;
                }
            };
            work.tokens.push(token);
            let drafts = self.drafts.as_mut();
            let Some(next) = drafts.and_then(|drafts| drafts.speculator.accept(seq, token)) else {
                break;
            };
            self.sequences.extend(seq, &[token]);
            generation.drafted.n_right += 1;
            self.metrics.n_right.add(1);
            row = next;
        }
        self.metrics.n_tokens_max.raise(self.sequences.held(seq).len());
        goes_on
    }

    /// Why a sequence was left out of the latest decode.
    fn why_rejected(&self, seq: usize) -> String {
        let all = self.context.rejected();
        let found = all.iter().find(|rejection| rejection.seqs.contains(seq));
        found.map_or_else(String::new, |rejection| sentence(&rejection.error))
    }
}
