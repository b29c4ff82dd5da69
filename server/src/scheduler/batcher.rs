//! The scheduler thread: decodes running sequences first, then prefills prompts in chunks, in one context.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use engine::context::{Batch, Context, DecodeError, MemoryError, SeqSet};
use engine::model::Model;
use engine::sample::{Candidates, Token};
use engine::speculate::Decoded;

use super::Settings;
use super::commands::PendingScales;
use super::drafts::{CompletionId, Drafts};
use super::generation::Step;
use super::logprobs::logprob;
use super::prefill_budget::{PrefillBudget, SMALL_BATCH, divide};
use super::queue::{Inbox, Job, order};
use super::request::{Event, Finish, PromptDone};
use super::sequences::{Match, Sequences};
use crate::metrics::{Gauges, Metrics};

/// Maximum number of times that later jobs may overtake a job that does not fit.
const MAX_OVERTAKEN: usize = 32;
/// Maximum number of jobs without free cells that are skipped in one step.
const MAX_BLOCKED: usize = 4;
/// KV cache cells reserved for the growth of each running sequence before another prompt is admitted.
const GROWTH: usize = 16;
/// Maximum chunk of a prompt whose logits are needed. Each row has `n_vocab` logits.
const MAX_ROWS: usize = 32;

/// State of the scheduler thread.
pub struct Batcher {
    pub(super) model: Arc<Model>,
    pub(super) context: Context,
    /// State of speculative decoding, if enabled.
    pub(super) drafts: Option<Drafts>,
    settings: Settings,
    inbox: Arc<Inbox>,
    pub(super) metrics: Arc<Metrics>,
    gauges: Arc<Mutex<Gauges>>,
    pub(super) sequences: Sequences,
    pub(super) waiting: Vec<Job>,
    pub(super) running: Vec<Running>,
    /// Pending adapter changes. They wait for running sequences to finish; no job is admitted before them.
    pub(super) pending_scales: Vec<PendingScales>,
    batch: Batch,
    pub(super) candidates: Candidates,
    prefill_budget: PrefillBudget,
}

/// A job with a sequence.
pub struct Running {
    pub(super) job: Job,
    pub(super) seq: usize,
    n_cached: usize,
    started: Instant,
}

impl Running {
    /// Returns the id of the completion in the sequence.
    pub(super) fn completion_id(&self) -> Option<CompletionId> {
        let generation = self.job.generations.first()?;
        Some((self.job.arrival, generation.choice))
    }
}

/// Tokens of one sequence in a batch.
struct Part {
    /// Index of the sequence in `running`.
    at: usize,
    /// Position in the sequence, and number of tokens.
    from: usize,
    n: usize,
    /// Index of the first row in the batch.
    row: usize,
}

impl Batcher {
    pub(super) fn new(
        context: Context,
        drafts: Option<Drafts>,
        settings: Settings,
        inbox: Arc<Inbox>,
        metrics: Arc<Metrics>,
        gauges: Arc<Mutex<Gauges>>,
    ) -> Batcher {
        Batcher {
            model: context.model().clone(),
            sequences: Sequences::new(context.params().n_seq_max),
            prefill_budget: PrefillBudget::new(settings.t_step),
            context,
            drafts,
            settings,
            inbox,
            metrics,
            gauges,
            waiting: Vec::new(),
            running: Vec::new(),
            pending_scales: Vec::new(),
            batch: Batch::new(),
            candidates: Candidates::default(),
        }
    }

    /// Runs until the inbox closes. A panic fails the requests in flight, not the scheduler.
    pub fn run(mut self) {
        loop {
            match catch_unwind(AssertUnwindSafe(|| self.step(true))) {
                Ok(true) => {}
                Ok(false) => return,
                Err(_) => self.reset(),
            }
        }
    }

    /// Fails all running jobs and clears the context, whose contents are unreliable after a panic.
    pub fn reset(&mut self) {
        for running in self.running.drain(..) {
            let text = "internal error while running the model".to_owned();
            running
                .job
                .generations
                .iter()
                .for_each(|g| g.send(Event::Failed(text.clone())));
        }
        self.batch.clear();
        self.context.clear();
        if let Some(drafts) = &mut self.drafts {
            drafts.reset();
        }
        self.sequences = Sequences::new(self.context.params().n_seq_max);
    }

    /// Takes new jobs and commands, then runs one decode step and one prefill step. If idle and `may_wait`,
    /// blocks until a job arrives. Returns false once the inbox has closed.
    pub fn step(&mut self, may_wait: bool) -> bool {
        let is_idle = self.running.is_empty() && self.waiting.is_empty();
        if is_idle {
            self.metrics.rest();
        }
        if !self.inbox.take(&mut self.waiting, is_idle && may_wait) {
            return false;
        }
        self.metrics.begin_step();
        self.drop_abandoned_jobs();
        self.expire();
        for command in self.inbox.commands() {
            command(self);
        }
        self.apply_pending_scales();
        if self.pending_scales.is_empty() {
            self.admit_jobs();
        }
        self.inbox.set_waiting(self.waiting.len());
        self.decode_step();
        self.prompt_step();
        self.publish_gauges();
        true
    }

    /// Updates the gauges.
    fn publish_gauges(&self) {
        let (n_running, n_kept) = self.sequences.n_busy_and_idle();
        *self.gauges.lock().unwrap_or_else(PoisonError::into_inner) = Gauges {
            n_running,
            n_waiting: self.waiting.len(),
            n_kept,
            n_used: self.context.n_used(),
            // Sequences with a common prefix share its cells.
            n_busy: self.sequences.n_busy_tokens().min(self.context.n_used()),
            n_ctx: self.context.n_ctx(),
            is_limited: self.context.is_limited(),
        };
    }

    /// Cancels jobs whose clients disconnected. Their cached tokens may be evicted.
    fn drop_abandoned_jobs(&mut self) {
        let before = self.waiting.len() + self.running.len();
        self.waiting.retain(|job| !job.is_abandoned());
        for i in (0..self.running.len()).rev() {
            if self.running[i].job.is_abandoned() {
                let removed = self.running.swap_remove(i);
                self.sequences.release(removed.seq);
            }
        }
        self.metrics
            .n_abandoned
            .add(before - self.waiting.len() - self.running.len());
    }

    /// Ends jobs that exceeded their deadline, whether queued or running.
    fn expire(&mut self) {
        for mut job in self.waiting.extract_if(.., |job| job.is_expired()) {
            job.expire(0);
        }
        for i in (0..self.running.len()).rev() {
            if self.running[i].job.is_expired() {
                let mut removed = self.running.swap_remove(i);
                removed.job.expire(removed.n_cached);
                self.sequences.release(removed.seq);
            }
        }
    }

    /// Admits queued jobs while sequences and cells are available.
    fn admit_jobs(&mut self) {
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
                    let text = "the prompt does not fit into the context".to_owned();
                    job.generations.iter().for_each(|g| g.send(Event::Failed(text.clone())));
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
        let n_cached = self.sequences.tokens_of(seq).len();
        if !job.prompt_done_sent {
            self.metrics.n_queried.add(job.n_prompt);
            self.metrics.n_cached.add(n_cached);
            self.metrics.queued.observe(job.arrived.elapsed());
        }
        job.n_overtaken = 0;
        self.running.push(Running {
            job,
            seq,
            n_cached,
            started: Instant::now(),
        });
    }

    /// Returns a sequence with the longest cached prefix of the job's tokens and enough free cells for the
    /// rest.
    fn find_sequence(&mut self, job: &Job) -> Option<usize> {
        if self.n_reserved() + job.generations.len() > self.settings.n_parallel {
            return None;
        }
        // The last token is always computed because its logits are needed.
        let reusable = &job.tokens[..job.tokens.len() - 1];
        let found = self.sequences.best_match(reusable).filter(|_| job.reuse);
        let seq = match found {
            Some(found) => self.reuse(found)?,
            None => self.take_empty_sequence(None)?,
        };
        self.sequences.take(seq);
        let n_uncomputed = job.tokens.len() - self.sequences.tokens_of(seq).len();
        let growth = match self.running.len() {
            0 => 0,
            n => GROWTH * (n + 1),
        };
        if self.fits(n_uncomputed + growth) {
            return Some(seq);
        }
        self.sequences.release(seq);
        None
    }

    /// Returns a sequence with the common prefix: the matching sequence, if it is idle and holds little else,
    /// otherwise a copy that shares the prefix.
    fn reuse(&mut self, found: Match) -> Option<usize> {
        let Match { seq, n_common, is_idle } = found;
        let n_held = self.sequences.tokens_of(seq).len();
        let has_little_else = n_held - n_common <= n_held / 4;
        let other = match is_idle && has_little_else {
            true => None,
            false => self.take_empty_sequence(Some(seq)),
        };
        match other {
            None if is_idle => {
                self.truncate(seq, n_common);
                Some(seq)
            }
            None => None,
            Some(other) => {
                // Some memories cannot share a partial sequence; its tokens are then recomputed.
                if self.context.seq_cp(seq, other, ..).is_ok() {
                    self.sequences.copy(seq, other);
                    self.truncate(other, n_common);
                }
                Some(other)
            }
        }
    }

    /// Truncates a sequence to `keep` tokens, or to fewer if the memory cannot restore that position.
    fn truncate(&mut self, seq: usize, keep: usize) {
        if keep >= self.sequences.tokens_of(seq).len() {
            return;
        }
        let left = match self.context.seq_rm(seq, keep..) {
            Ok(()) => keep,
            // Recurrent states are saved at some positions only.
            Err(MemoryError::StateForgotten { available, .. }) => {
                let before = available.into_iter().rev().find(|&at| at < keep);
                before.filter(|&at| self.context.seq_rm(seq, at..).is_ok()).unwrap_or(0)
            }
            // A sliding window may no longer contain the tokens before the cut.
            Err(_) => 0,
        };
        if left == 0 {
            self.erase(seq);
        }
        self.sequences.truncate(seq, left);
    }

    /// Removes all tokens of a sequence.
    pub(super) fn erase(&mut self, seq: usize) {
        let removed = self.context.seq_rm(seq, ..);
        debug_assert!(
            removed.is_ok(),
            "removing a whole sequence always succeeds: {removed:?}"
        );
        self.sequences.clear(seq);
    }

    /// Returns an empty sequence; evicts the least recently used idle sequence if necessary.
    fn take_empty_sequence(&mut self, but: Option<usize>) -> Option<usize> {
        if let Some(seq) = self.sequences.free() {
            return Some(seq);
        }
        let seq = self.sequences.oldest_idle(but)?;
        self.erase(seq);
        Some(seq)
    }

    /// Returns the number of free cells.
    fn n_free(&self) -> usize {
        match self.context.is_limited() {
            true => self.context.n_ctx() - self.context.n_used(),
            false => usize::MAX,
        }
    }

    /// Returns true if `n` tokens fit in addition to the unprocessed prompts of running jobs. Evicts cached
    /// sequences if necessary.
    fn fits(&mut self, n: usize) -> bool {
        let promised: usize = self.running.iter().map(|r| self.n_uncomputed(r)).sum();
        self.free_cells(n + promised)
    }

    /// Evicts cached sequences until `n` cells are free; false if that is impossible.
    pub(super) fn free_cells(&mut self, n: usize) -> bool {
        while self.n_free() < n {
            let Some(seq) = self.sequences.oldest_idle(None) else {
                return false;
            };
            self.erase(seq);
        }
        true
    }

    /// Returns the number of tokens of a running job that are not computed yet.
    fn n_uncomputed(&self, running: &Running) -> usize {
        running.job.tokens.len() - self.sequences.tokens_of(running.seq).len()
    }

    /// Frees `n` cells: evicts cached sequences, then preempts running jobs, the youngest first. A job that
    /// is alone ends because its context is full.
    fn reserve_cells(&mut self, n: impl Fn(&Batcher) -> usize) {
        while !self.free_cells(n(self)) {
            let youngest = |i: &usize| {
                let job = &self.running[*i].job;
                (std::cmp::Reverse(job.priority), job.arrival)
            };
            let Some(i) = (0..self.running.len()).max_by_key(youngest) else {
                return;
            };
            let mut removed = self.running.swap_remove(i);
            if self.running.is_empty() {
                removed
                    .job
                    .generations
                    .iter_mut()
                    .for_each(|g| g.end(Finish::ContextFull));
                self.sequences.release(removed.seq);
                return;
            }
            self.metrics.n_preempted.add(1);
            self.erase(removed.seq);
            // Prompt log probabilities are collected again from the first token.
            if let Some((_, rated)) = &mut removed.job.prompt_logprobs {
                rated.clear();
            }
            self.waiting.push(removed.job);
        }
    }

    /// Decodes the next token of each generating sequence, together with short remainders of prompts.
    fn decode_step(&mut self) {
        let is_single = |b: &Batcher, r: &Running| b.n_uncomputed(r) == 1;
        self.reserve_cells(|b| b.running.iter().filter(|r| is_single(b, r)).count());
        let n_single = self.running.iter().filter(|r| is_single(self, r)).count();
        self.assign_drafters();
        if self.drafts.is_some() && n_single > 0 {
            // Cells for drafts take precedence over cached sequences.
            self.free_cells(SMALL_BATCH);
        }
        let mut few = SMALL_BATCH
            .saturating_sub(n_single)
            .min(self.n_free().saturating_sub(n_single));
        let mut parts = Vec::new();
        for at in 0..self.running.len() {
            let n = self.n_uncomputed(&self.running[at]);
            let is_short = n > 1 && n <= few && self.running[at].job.prompt_logprobs.is_none();
            if n == 1 || is_short {
                few -= if is_short { n } else { 0 };
                parts.push((at, n));
            }
        }
        let start = Instant::now();
        self.metrics.n_decoded_sequences.add(n_single);
        let singles: Vec<usize> = parts.iter().map(|(at, _)| *at).collect();
        // Prompt completion is reported by `compute`, so a batch with prompts must take that path.
        let are_texts = parts.len() == n_single && singles.iter().all(|&at| self.running[at].job.prompt_done_sent);
        if !are_texts || !self.decode_with_drafts(&singles) {
            self.compute(&parts);
        }
        if n_single > 0 {
            self.metrics.t_decode.add_time(start.elapsed());
        }
    }

    /// Prefills prompts within the budget of the step.
    fn prompt_step(&mut self) {
        let n_batch = self.context.params().n_batch;
        let most = n_batch.min(self.context.params().n_ubatch);
        let budget = match self.running.iter().any(|r| self.n_uncomputed(r) == 1) {
            true => self.prefill_budget.budget(most),
            false => most,
        };
        let left_of_prompts = |b: &Batcher| -> usize {
            let left = b.running.iter().map(|r| b.n_uncomputed(r));
            left.filter(|&n| n > 1).sum()
        };
        self.reserve_cells(|b| left_of_prompts(b).min(budget));
        let mut prompts: Vec<usize> = (0..self.running.len())
            .filter(|&i| self.n_uncomputed(&self.running[i]) > 1)
            .collect();
        prompts.sort_by_key(|&i| self.running[i].job.arrival);
        let left: Vec<usize> = prompts.iter().map(|&i| self.n_uncomputed(&self.running[i])).collect();
        let shares = divide(&left, budget, n_batch.min(self.n_free()));
        let shares = prompts.iter().zip(shares).map(|(&at, share)| {
            let wants_rows = self.running[at].job.prompt_logprobs.is_some();
            (at, if wants_rows { share.min(MAX_ROWS) } else { share })
        });
        let parts: Vec<(usize, usize)> = shares.filter(|(_, share)| *share > 0).collect();
        let n: usize = parts.iter().map(|(_, n)| n).sum();
        let start = Instant::now();
        self.compute(&parts);
        if n > 0 {
            let time = start.elapsed();
            self.prefill_budget.record(n, time);
            self.metrics.t_prompt.add_time(time);
        }
    }

    /// Computes the next `n` tokens of each job at index `at`, and samples for jobs whose tokens are
    /// complete.
    fn compute(&mut self, parts: &[(usize, usize)]) {
        if parts.is_empty() {
            return;
        }
        let mut parts = self.fill_batch(parts);
        self.metrics.n_decode.add(1);
        let decoded = self.context.decode(&self.batch);
        let mut failed: Vec<(usize, String)> = Vec::new();
        match decoded {
            Err(error) => failed.extend(parts.drain(..).map(|part| (part.at, error_message(&error)))),
            Ok(()) => {
                for rejection in self.context.rejected() {
                    let is_of = |part: &mut Part| rejection.seqs.contains(self.running[part.at].seq);
                    let rejected = parts.extract_if(.., is_of);
                    failed.extend(rejected.map(|part| (part.at, error_message(&rejection.error))));
                }
            }
        }
        for part in &parts {
            let running = &self.running[part.at];
            let tokens = &running.job.tokens[part.from..part.from + part.n];
            self.sequences.extend(running.seq, tokens);
            self.metrics.n_tokens_max.raise(part.from + part.n);
            if !running.job.prompt_done_sent {
                self.metrics.n_prompt.add(part.n);
            }
            if let Some(drafts) = &mut self.drafts {
                let decoded = Decoded {
                    context: &self.context,
                    first: part.row,
                    n_before: part.from,
                    tokens,
                };
                drafts.follow(running.seq, decoded);
            }
        }
        let finished = self.sample_complete(&parts);
        self.finish_jobs(finished, failed);
    }

    /// Removes finished jobs, and fails jobs with an error message.
    pub(super) fn finish_jobs(&mut self, mut finished: Vec<usize>, failed: Vec<(usize, String)>) {
        for (at, text) in failed {
            let running = &self.running[at];
            running
                .job
                .generations
                .iter()
                .for_each(|g| g.send(Event::Failed(text.clone())));
            let seq = running.seq;
            self.erase(seq);
            finished.push(at);
        }
        finished.sort_unstable();
        for at in finished.into_iter().rev() {
            let removed = self.running.swap_remove(at);
            self.sequences.release(removed.seq);
        }
    }

    fn fill_batch(&mut self, parts: &[(usize, usize)]) -> Vec<Part> {
        self.batch.clear();
        let mut filled = Vec::with_capacity(parts.len());
        for &(at, n) in parts {
            let running = &self.running[at];
            let from = self.sequences.tokens_of(running.seq).len();
            let (row, seqs) = (self.batch.len(), SeqSet::one(running.seq));
            let wants_rows = running.job.prompt_logprobs.is_some();
            for (i, &token) in running.job.tokens[from..from + n].iter().enumerate() {
                let is_last = from + i + 1 == running.job.tokens.len();
                self.batch.push(token, from + i, seqs, is_last || wants_rows);
            }
            filled.push(Part { at, from, n, row });
        }
        filled
    }

    /// Samples the next token of each complete job and reports finished prompts. Returns the finished jobs.
    fn sample_complete(&mut self, parts: &[Part]) -> Vec<usize> {
        let mut rows: Vec<(usize, usize)> = Vec::new();
        for part in parts {
            self.collect_prompt_logprobs(part);
            if self.n_uncomputed(&self.running[part.at]) > 0 {
                continue;
            }
            let row = part.row + part.n - 1;
            rows.push((part.at, row));
            self.send_prompt_done(part.at);
            rows.extend(self.fork(part.at).map(|at| (at, row)));
        }
        let mut finished = Vec::new();
        for (at, row) in rows {
            let job = &mut self.running[at].job;
            let generation = &mut job.generations[0];
            let logits = self.context.logits(row).unwrap_or_default();
            if generation.is_prompt_only() {
                generation.end(Finish::Limit);
                finished.push(at);
                continue;
            }
            match generation.next(logits, self.model.vocab(), &mut self.candidates) {
                Step::On(token) => job.tokens.push(token),
                Step::Over => finished.push(at),
            }
        }
        finished
    }

    /// Collects the log probabilities of prompt tokens, if requested.
    fn collect_prompt_logprobs(&mut self, part: &Part) {
        let job = &mut self.running[part.at].job;
        let Some((n_top, found)) = &mut job.prompt_logprobs else {
            return;
        };
        let prompt: &[Token] = &job.tokens[..job.n_prompt];
        for i in 0..part.n {
            let next = prompt.get(part.from + i + 1);
            if let Some((&next, logits)) = next.zip(self.context.logits(part.row + i)) {
                found.push(logprob(logits, next, *n_top, &mut self.candidates));
            }
        }
    }

    /// Sends the event for a finished prompt, once per job.
    fn send_prompt_done(&mut self, at: usize) {
        let running = &mut self.running[at];
        let job = &mut running.job;
        if std::mem::replace(&mut job.prompt_done_sent, true) {
            return;
        }
        self.metrics.to_first_token.observe(job.arrived.elapsed());
        let logprobs = job.prompt_logprobs.take().map(|(_, found)| found);
        job.generations[0].send(Event::Prompt(PromptDone {
            n_prompt: job.n_prompt,
            n_cached: running.n_cached,
            t_waited: running.started - job.arrived,
            t_prompt: running.started.elapsed(),
            logprobs: logprobs.unwrap_or_default(),
        }));
    }

    /// Assigns a sequence that shares the prompt to each further choice. Returns their indices in `running`.
    fn fork(&mut self, at: usize) -> std::ops::Range<usize> {
        let first = self.running.len();
        let others = self.running[at].job.generations.split_off(1);
        for generation in others {
            let (from, n_cached) = (self.running[at].seq, self.running[at].n_cached);
            // Admission reserved a sequence for each choice, so an empty one exists.
            let Some(seq) = self.take_empty_sequence(Some(from)) else {
                generation.send(Event::Failed(
                    "internal error: no free sequence for another choice".to_owned(),
                ));
                continue;
            };
            if let Err(error) = self.context.seq_cp(from, seq, ..) {
                generation.send(Event::Failed(error.to_string()));
                continue;
            }
            self.sequences.copy(from, seq);
            self.sequences.take(seq);
            let job = &self.running[at].job;
            let job = Job {
                tokens: job.tokens.clone(),
                generations: vec![generation],
                prompt_logprobs: None,
                id: job.id.clone(),
                ..*job
            };
            self.running.push(Running {
                job,
                seq,
                n_cached,
                started: Instant::now(),
            });
        }
        first..self.running.len()
    }
}

pub(super) fn error_message(error: &DecodeError) -> String {
    format!("cannot run the model: {error}")
}

/// Default duration of a step with prefill while other sequences are decoding.
pub const DEFAULT_STEP_TIME: Duration = Duration::from_millis(100);
