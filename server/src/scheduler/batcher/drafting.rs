//! Steps with drafts: one decode verifies several drafted tokens per sequence. Rejected drafts are removed
//! within the step, so other code never sees them.

use engine::sample::TokenLogits;
use engine::speculate::Step as Next;

use super::Batcher;
use crate::scheduler::generation::{Generation, Step};
use crate::scheduler::request::Event;

impl Batcher {
    /// Assigns drafters to running completions, while idle drafters are available.
    pub(super) fn assign_drafters(&mut self) {
        let Some(drafts) = &mut self.drafts else { return };
        // Drafters only read tokens, so prompts with images get no drafts.
        let texts = self.running.iter().filter(|r| r.job.images.is_empty());
        let running = texts.filter_map(|r| Some((r.seq, r.completion_id()?)));
        drafts.assign(&running.collect::<Vec<_>>());
    }

    /// Decodes the next token of each completion in `at` together with its drafts, and samples as long as the
    /// drafts are accepted. Returns false, without changes, if drafting is not possible.
    pub(super) fn decode_with_drafts(&mut self, at: &[usize]) -> bool {
        let Some(drafts) = &mut self.drafts else { return false };
        let next = |&at: &usize| {
            let running = &self.running[at];
            let (&token, text) = running.job.tokens.split_last()?;
            let n_best = running.job.generations.first().map_or(0, Generation::n_best);
            Some(Next::new(running.seq, text, token).limited(n_best))
        };
        let mut steps: Vec<Next<'_>> = at.iter().filter_map(next).collect();
        if steps.is_empty() || !drafts.decode(&mut self.memory.context, &mut steps) {
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
                None => failed.push((at, self.rejection(self.running[at].seq))),
            }
        }
        for (at, ..) in rows {
            let seq = self.running[at].seq;
            let (n_text, drafts) = (self.memory.sequences.tokens_of(seq).len(), self.drafts.as_mut());
            let forgotten = drafts.map_or(Ok(()), |drafts| {
                drafts.forget_drafts(&mut self.memory.context, seq, n_text)
            });
            if let Err(error) = forgotten
                && !over.contains(&at)
            {
                failed.push((at, Event::decode_failed(&error)));
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
        self.memory.sequences.extend(seq, &[token]);
        generation.drafted.n_drafts += n_drafts;
        self.metrics.n_drafts.add(n_drafts);
        self.metrics.n_draft_sequences.add(usize::from(n_drafts > 0));
        let continues = loop {
            let logits = self.memory.context.output(row).unwrap_or(TokenLogits::All(&[]));
            if !generation.is_ready() {
                // A chain with a grammar needs all logits.
                running.postponed = Some(logits.all().to_vec());
                break true;
            }
            let token = match generation.next(logits, self.model.vocab(), &mut self.candidates) {
                Step::On(token) => token,
                Step::Over => break false,
            };
            job.tokens.push(token);
            let drafts = self.drafts.as_mut();
            let Some(next) = drafts.and_then(|drafts| drafts.accept(seq, token)) else {
                break true;
            };
            self.memory.sequences.extend(seq, &[token]);
            generation.drafted.n_right += 1;
            self.metrics.n_right.add(1);
            row = next;
        };
        let n_tokens = self.memory.sequences.tokens_of(seq).len();
        self.metrics.n_tokens_max.raise(n_tokens);
        continues
    }

    /// Returns the error of a sequence that the last decode rejected.
    fn rejection(&self, seq: usize) -> Event {
        let all = self.memory.context.rejected();
        match all.iter().find(|rejection| rejection.seqs.contains(seq)) {
            Some(rejection) => Event::decode_failed(&rejection.error),
            None => Event::Failed(String::new()),
        }
    }
}
