//! The scheduler thread: decodes running sequences first, then prefills prompts in chunks, in one context.
//!
//! This module has the loop and its steps. [`admission`] starts queued jobs, [`drafting`] decodes with drafts,
//! and [`images`] keeps the rows of an image in one batch. [`postponed`] keeps the logits of jobs with slow grammars,
//! and [`commands`] runs commands.

mod admission;
mod commands;
mod drafting;
mod images;
mod postponed;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use engine::context::{Batch, Context, SeqSet};
use engine::finite::{NotFinite, check_logits};
use engine::model::Model;
use engine::sample::{Candidates, Token};
use engine::speculate::Decoded;
use llama::parts::push_with_images;

use super::command::{Reply, Slot};
use super::drafts::{CompletionId, Drafts};
use super::logprobs::logprob;
use super::memory::Memory;
use super::prefill_budget::{PrefillBudget, SMALL_BATCH, divide};
use super::queue::{Inbox, Job};
use super::request::{Event, Finish, PromptDone, PromptProgress};
use super::settings::Settings;
use crate::metrics::{Gauges, Metrics};

/// Maximum chunk of a prompt whose logits are needed. Each row has `n_vocab` logits.
const MAX_ROWS: usize = 32;

/// State of the scheduler thread.
pub struct Batcher {
    model: Arc<Model>,
    pub(super) memory: Memory,
    /// State of speculative decoding, if enabled.
    drafts: Option<Drafts>,
    settings: Settings,
    inbox: Arc<Inbox>,
    metrics: Arc<Metrics>,
    gauges: Arc<Mutex<Gauges>>,
    waiting: Vec<Job>,
    running: Vec<Running>,
    /// Pending adapter changes. They wait for running sequences to finish; no job is admitted before them.
    pending_scales: Vec<PendingScales>,
    batch: Batch,
    candidates: Candidates,
    prefill_budget: PrefillBudget,
}

/// A job with a sequence.
struct Running {
    job: Job,
    seq: usize,
    n_cached: usize,
    started: Instant,
    /// Logits of the next token, which cannot be sampled yet.
    postponed: Option<Vec<f32>>,
}

impl Running {
    /// Returns the id of the completion in the sequence.
    fn completion_id(&self) -> Option<CompletionId> {
        let generation = self.job.generations.first()?;
        Some((self.job.arrival, generation.choice))
    }

    /// Reports that `n_done` tokens of the prompt are processed, if the request asks for it.
    fn report_progress(&self, n_done: usize) {
        let job = &self.job;
        if job.wants_progress && !job.prompt_done_sent {
            let is_first = n_done == self.n_cached;
            job.generations[0].send(Event::Progress(PromptProgress {
                n_prompt: job.n_prompt,
                n_cached: self.n_cached,
                n_done,
                t_prompt: if is_first {
                    Duration::ZERO
                } else {
                    self.started.elapsed()
                },
            }));
        }
    }
}

/// A change of adapter scales that waits for running sequences, which keep their scales.
struct PendingScales {
    scales: Vec<(usize, f32)>,
    reply: Reply<()>,
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
            memory: Memory::new(context),
            prefill_budget: PrefillBudget::new(settings.t_step),
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
            running.job.send_all(&Event::Failed(text));
        }
        self.batch.clear();
        self.memory.clear();
        if let Some(drafts) = &mut self.drafts {
            drafts.reset();
        }
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
            self.execute(command);
        }
        self.sample_postponed();
        self.apply_pending_scales();
        if self.pending_scales.is_empty() {
            self.admit_jobs();
        }
        self.inbox.set_waiting(self.waiting.len());
        self.decode_step();
        self.prompt_step();
        self.rest_while_postponed();
        self.publish_gauges();
        true
    }

    /// Returns the state of all sequences, as their owner sees it.
    pub fn slots(&self, owner: u64) -> Vec<Slot> {
        self.memory.slots(owner)
    }

    /// Updates the gauges.
    fn publish_gauges(&self) {
        *self.gauges.lock().unwrap_or_else(PoisonError::into_inner) = self.memory.gauges(self.waiting.len());
    }

    /// Cancels jobs whose clients disconnected. Their cached tokens may be evicted.
    fn drop_abandoned_jobs(&mut self) {
        let before = self.waiting.len() + self.running.len();
        self.waiting.retain(|job| !job.is_abandoned());
        for i in (0..self.running.len()).rev() {
            if self.running[i].job.is_abandoned() {
                let removed = self.running.swap_remove(i);
                self.memory.sequences.release(removed.seq);
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
                self.memory.sequences.release(removed.seq);
            }
        }
    }

    /// Returns the number of tokens of a running job that are not computed yet.
    fn n_uncomputed(&self, running: &Running) -> usize {
        running.job.tokens.len() - self.memory.sequences.tokens_of(running.seq).len()
    }

    /// Frees `n` cells: evicts cached sequences, then preempts running jobs, the youngest first. A job that
    /// is alone ends because its context is full.
    fn reserve_cells(&mut self, n: impl Fn(&Batcher) -> usize) {
        while !self.memory.free_cells(n(self)) {
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
                self.memory.sequences.release(removed.seq);
                return;
            }
            self.metrics.n_preempted.add(1);
            self.memory.erase(removed.seq);
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
            self.memory.free_cells(SMALL_BATCH);
        }
        let mut few = SMALL_BATCH
            .saturating_sub(n_single)
            .min(self.memory.n_free().saturating_sub(n_single));
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
        let n_batch = self.memory.context.params().n_batch;
        let most = n_batch.min(self.memory.context.params().n_ubatch);
        let is_decoding = self.running.iter().any(|r| self.n_uncomputed(r) == 1);
        let budget = if is_decoding {
            self.prefill_budget.budget(most)
        } else {
            most
        };
        let left_of_prompts = |b: &Batcher| -> usize {
            let left = b.running.iter().map(|r| b.n_uncomputed(r));
            left.filter(|&n| n > 1).sum()
        };
        self.reserve_cells(|b| left_of_prompts(b).min(budget.max(b.next_image())));
        let mut prompts: Vec<usize> = (0..self.running.len())
            .filter(|&i| self.n_uncomputed(&self.running[i]) > 1)
            .collect();
        prompts.sort_by_key(|&i| self.running[i].job.arrival);
        let left: Vec<usize> = prompts.iter().map(|&i| self.n_uncomputed(&self.running[i])).collect();
        let n_max = n_batch.min(self.memory.n_free());
        let shares = divide(&left, budget, n_max);
        let shares = prompts.iter().zip(shares).map(|(&at, share)| {
            let wants_rows = self.running[at].job.prompt_logprobs.is_some();
            (at, if wants_rows { share.min(MAX_ROWS) } else { share })
        });
        let parts = self.with_whole_images(shares.collect(), n_max);
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
        let decoded = self.memory.context.decode(&self.batch);
        let mut failed: Vec<(usize, Event)> = Vec::new();
        match decoded {
            Err(error) => failed.extend(parts.drain(..).map(|part| (part.at, Event::decode_failed(&error)))),
            Ok(()) => {
                for rejection in self.memory.context.rejected() {
                    let is_of = |part: &mut Part| rejection.seqs.contains(self.running[part.at].seq);
                    let rejected = parts.extract_if(.., is_of);
                    failed.extend(rejected.map(|part| (part.at, Event::decode_failed(&rejection.error))));
                }
            }
        }
        for part in &parts {
            let running = &self.running[part.at];
            let tokens = &running.job.tokens[part.from..part.from + part.n];
            self.memory.sequences.extend(running.seq, tokens);
            self.metrics.n_tokens_max.raise(part.from + part.n);
            if !running.job.prompt_done_sent {
                self.metrics.n_prompt.add(part.n);
            }
            if let Some(drafts) = &mut self.drafts {
                let decoded = Decoded {
                    context: &self.memory.context,
                    first: part.row,
                    n_before: part.from,
                    tokens,
                };
                drafts.follow(running.seq, decoded);
            }
        }
        for part in &parts {
            let running = &self.running[part.at];
            running.report_progress(part.from + part.n);
        }
        let (finished, not_numbers) = self.sample_complete(&parts);
        failed.extend(not_numbers);
        self.finish_jobs(finished, failed);
    }

    /// Removes finished jobs, and fails jobs with an error event.
    fn finish_jobs(&mut self, mut finished: Vec<usize>, failed: Vec<(usize, Event)>) {
        for (at, error) in failed {
            let running = &self.running[at];
            running.job.send_all(&error);
            self.memory.erase(running.seq);
            finished.push(at);
        }
        finished.sort_unstable();
        for at in finished.into_iter().rev() {
            let removed = self.running.swap_remove(at);
            self.memory.sequences.release(removed.seq);
        }
    }

    fn fill_batch(&mut self, parts: &[(usize, usize)]) -> Vec<Part> {
        self.batch.clear();
        let mut filled = Vec::with_capacity(parts.len());
        for &(at, n) in parts {
            let running = &self.running[at];
            let from = self.memory.sequences.tokens_of(running.seq).len();
            let (row, seqs) = (self.batch.len(), SeqSet::one(running.seq));
            let wants_rows = running.job.prompt_logprobs.is_some();
            if running.job.images.is_empty() {
                for (i, &token) in running.job.tokens[from..from + n].iter().enumerate() {
                    let is_last = from + i + 1 == running.job.tokens.len();
                    self.batch.push(token, from + i, seqs, is_last || wants_rows);
                    if is_last && !wants_rows {
                        self.batch.limit_last(running.job.n_best());
                    }
                }
            } else {
                let (tokens, images) = (&running.job.tokens, &running.job.images);
                push_with_images(&mut self.batch, tokens, from..from + n, images, running.seq);
                if from + n == tokens.len() {
                    self.batch.request_last();
                    self.batch.limit_last(running.job.n_best());
                }
            }
            filled.push(Part { at, from, n, row });
        }
        filled
    }

    /// Samples the next token of each complete job and reports finished prompts. Returns the finished jobs, and the
    /// events of failed ones.
    fn sample_complete(&mut self, parts: &[Part]) -> (Vec<usize>, Vec<(usize, Event)>) {
        let mut rows: Vec<(usize, usize)> = Vec::new();
        let mut failed = Vec::new();
        for part in parts {
            if let Err(error) = self.collect_prompt_logprobs(part) {
                failed.push((part.at, Event::Failed(format!("cannot run the model: {error}"))));
                continue;
            }
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
            let generation = &mut self.running[at].job.generations[0];
            if generation.is_prompt_only() {
                generation.end(Finish::Limit);
                finished.push(at);
            } else if !self.sample(at, row) {
                finished.push(at);
            }
        }
        (finished, failed)
    }

    /// Collects the log probabilities of prompt tokens, if requested.
    fn collect_prompt_logprobs(&mut self, part: &Part) -> Result<(), NotFinite> {
        let job = &mut self.running[part.at].job;
        let Some((n_top, found)) = &mut job.prompt_logprobs else {
            return Ok(());
        };
        let prompt: &[Token] = &job.tokens[..job.n_prompt];
        for i in 0..part.n {
            let next = prompt.get(part.from + i + 1);
            if let Some((&next, logits)) = next.zip(self.memory.context.logits(part.row + i)) {
                check_logits(logits)?;
                found.push(logprob(logits, next, *n_top, &mut self.candidates));
            }
        }
        Ok(())
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
            let Some(seq) = self.memory.take_empty_sequence(Some(from)) else {
                generation.send(Event::Failed(
                    "internal error: no free sequence for another choice".to_owned(),
                ));
                continue;
            };
            if let Err(error) = self.memory.context.seq_cp(from, seq, ..) {
                generation.send(Event::Failed(error.to_string()));
                continue;
            }
            self.memory.sequences.copy(from, seq);
            let job = &self.running[at].job;
            let key = self.memory.sequences.key_of(from).clone();
            self.memory.sequences.take(seq, key, job.n_prompt);
            if let Err(error) = self.memory.adapt(seq) {
                generation.send(Event::Failed(error.to_string()));
                self.memory.erase(seq);
                continue;
            }
            let job = Job {
                tokens: job.tokens.clone(),
                images: job.images.clone(),
                scales: job.scales.clone(),
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
                postponed: None,
            });
        }
        first..self.running.len()
    }
}
