//! Tokens that cannot be sampled yet: a thread still computes which tokens a slow grammar allows. The logits are kept,
//! and other sequences continue.

use std::time::Duration;

use engine::sample::TokenLogits;

use super::Batcher;
use crate::scheduler::generation::Step;

/// Pause of the scheduler if all running jobs wait for their grammars.
const PAUSE: Duration = Duration::from_millis(1);

impl Batcher {
    /// Samples the next token of a job, or keeps its logits until the job's grammar is ready. Returns false if
    /// the completion has ended.
    pub(super) fn sample(&mut self, at: usize, row: usize) -> bool {
        let running = &mut self.running[at];
        let logits = self.memory.context.output(row).unwrap_or(TokenLogits::All(&[]));
        let generation = &mut running.job.generations[0];
        if !generation.is_ready() {
            // A chain with a grammar needs all logits.
            running.postponed = Some(logits.all().to_vec());
            return true;
        }
        match generation.next(logits, self.model.vocab(), &mut self.candidates) {
            Step::On(token) => running.job.tokens.push(token),
            Step::Over => return false,
        }
        true
    }

    /// Samples the postponed tokens of jobs whose grammars are ready now.
    pub(super) fn sample_postponed(&mut self) {
        let mut finished = Vec::new();
        for (at, running) in self.running.iter_mut().enumerate() {
            let generation = &mut running.job.generations[0];
            if running.postponed.is_none() || !generation.is_ready() {
                continue;
            }
            let logits = running.postponed.take().unwrap_or_default();
            let logits = TokenLogits::All(&logits);
            match generation.next(logits, self.model.vocab(), &mut self.candidates) {
                Step::On(token) => running.job.tokens.push(token),
                Step::Over => finished.push(at),
            }
        }
        self.finish_jobs(finished, Vec::new());
    }

    /// Sleeps for a moment if no job can continue.
    pub(super) fn rest_while_postponed(&self) {
        if !self.running.is_empty() && self.running.iter().all(|running| running.postponed.is_some()) {
            std::thread::sleep(PAUSE);
        }
    }
}
