//! Admission: starts queued jobs, each in a sequence with a cached prefix if possible.

use std::time::Instant;

use super::images::without_cut_image;
use super::{Batcher, Running};
use crate::scheduler::queue::{Job, order};
use crate::scheduler::request::Event;
use crate::scheduler::sequences::Match;

/// Maximum number of times that later jobs may overtake a job that does not fit.
const MAX_OVERTAKEN: usize = 32;
/// Maximum number of jobs without free cells that are skipped in one step.
const MAX_BLOCKED: usize = 4;
/// KV cache cells reserved for the growth of each running sequence before another prompt is admitted.
const GROWTH: usize = 16;

impl Batcher {
    /// Admits queued jobs while sequences and cells are available.
    pub(super) fn admit_jobs(&mut self) {
        let mut blocked: Vec<u64> = Vec::new();
        while blocked.len() < MAX_BLOCKED && self.n_reserved() < self.settings.n_parallel {
            let running = |client| self.running.iter().filter(|r| r.job.client == client).count();
            let order = order(&self.waiting, running);
            let next = order.into_iter().find(|&i| !blocked.contains(&self.waiting[i].arrival));
            let Some(i) = next else { return };
            let job = self.waiting.swap_remove(i);
            match self.find_sequence(&job) {
                Some(seq) => {
                    self.start_job(job, seq);
                    let passed = self.waiting.iter_mut().filter(|w| blocked.contains(&w.arrival));
                    passed.for_each(|w| w.n_overtaken += 1);
                }
                None if self.running.is_empty() => {
                    job.send_all(&Event::Failed("the prompt does not fit into the context".to_owned()));
                }
                None => {
                    let must_wait = job.n_overtaken >= MAX_OVERTAKEN;
                    blocked.push(job.arrival);
                    self.waiting.push(job);
                    if must_wait {
                        return;
                    }
                }
            }
        }
    }

    /// Returns the number of sequences in use, including those reserved for further choices of a prompt.
    fn n_reserved(&self) -> usize {
        self.running.iter().map(|r| r.job.generations.len()).sum()
    }

    /// Starts a job in a sequence.
    fn start_job(&mut self, mut job: Job, seq: usize) {
        if let Err(error) = self.memory.adapt(seq) {
            job.send_all(&Event::Failed(error.to_string()));
            self.memory.erase(seq);
            return;
        }
        let n_cached = self.memory.sequences.tokens_of(seq).len();
        if !job.prompt_done_sent {
            self.metrics.n_queried.add(job.n_prompt);
            self.metrics.n_cached.add(n_cached);
            self.metrics.queued.observe(job.arrived.elapsed());
        }
        job.n_overtaken = 0;
        let running = Running {
            job,
            seq,
            n_cached,
            started: Instant::now(),
            postponed: None,
        };
        running.report_progress(n_cached);
        self.running.push(running);
    }

    /// Returns a sequence with the longest cached prefix of the job's tokens and enough free cells for the
    /// rest.
    fn find_sequence(&mut self, job: &Job) -> Option<usize> {
        if self.n_reserved() + job.generations.len() > self.settings.n_parallel {
            return None;
        }
        let key = self.memory.key(job.owner, job.scales.as_ref());
        // The last token is always computed because its logits are needed.
        let reusable = &job.tokens[..job.tokens.len() - 1];
        let found = if job.reuse {
            let found = self.memory.sequences.best_match(reusable, &key);
            let whole = found.map(|found| Match {
                n_common: without_cut_image(&job.images, found.n_common),
                ..found
            });
            whole.filter(|found| found.n_common > 0)
        } else {
            None
        };
        let seq = match found {
            Some(found) => self.memory.reuse(found)?,
            None => self.memory.take_empty_sequence(None)?,
        };
        self.memory.sequences.take(seq, key, job.n_prompt);
        let n_uncomputed = job.tokens.len() - self.memory.sequences.tokens_of(seq).len();
        let growth = match self.running.len() {
            0 => 0,
            n => GROWTH * (n + 1),
        };
        if self.fits(n_uncomputed + growth) {
            return Some(seq);
        }
        self.memory.sequences.release(seq);
        None
    }

    /// Returns true if `n` tokens fit in addition to the unprocessed prompts of running jobs. Evicts cached
    /// sequences if necessary.
    fn fits(&mut self, n: usize) -> bool {
        let promised: usize = self.running.iter().map(|r| self.n_uncomputed(r)).sum();
        self.memory.free_cells(n + promised)
    }
}
