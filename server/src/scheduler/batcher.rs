//! The thread that computes: texts under way first, then parts of prompts, in one context.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use engine::context::{Batch, Context, DecodeError, MemoryError, SeqSet};
use engine::model::Model;
use engine::sample::{Candidates, Token};
use engine::speculate::Decoded;

use super::Settings;
use super::commands::Rescaling;
use super::drafts::{Drafts, TextId};
use super::generation::Step;
use super::logprobs::logprob;
use super::request::{Event, Finish, PromptDone};
use super::sequences::{Match, Sequences};
use super::share::{FEW, Pace, divide};
use super::work::{Inbox, Work, order};
use crate::metrics::{Gauges, Metrics};

/// Later works are begun before one for which there is no room up to so many times.
const MAX_OVERTAKEN: usize = 32;
/// Works without room that are passed over in a step.
const MAX_BLOCKED: usize = 4;
/// Cells that are left for each text to grow before another prompt is begun.
const GROWTH: usize = 16;
/// Tokens of a prompt whose logits are wanted that are computed at once: each takes a row as long as the vocabulary.
const MAX_ROWS: usize = 32;

/// Everything that the thread works with.
pub struct Batcher {
    pub(super) model: Arc<Model>,
    pub(super) context: Context,
    /// Drafts of texts under way, if tokens are to be guessed.
    pub(super) drafts: Option<Drafts>,
    settings: Settings,
    inbox: Arc<Inbox>,
    pub(super) metrics: Arc<Metrics>,
    gauges: Arc<Mutex<Gauges>>,
    pub(super) sequences: Sequences,
    pub(super) waiting: Vec<Work>,
    pub(super) running: Vec<Running>,
    /// Changes of adapters that wait for the end of what is under way; nothing is begun before them.
    pub(super) rescalings: Vec<Rescaling>,
    batch: Batch,
    pub(super) candidates: Candidates,
    pace: Pace,
}

/// Work that has a sequence.
pub struct Running {
    pub(super) work: Work,
    pub(super) seq: usize,
    n_cached: usize,
    begun: Instant,
}

impl Running {
    /// The text that its sequence has.
    pub(super) fn text_id(&self) -> Option<TextId> {
        let generation = self.work.generations.first()?;
        Some((self.work.arrival, generation.choice))
    }
}

/// Tokens of a running text in a batch.
struct Part {
    /// Index in `running`.
    at: usize,
    /// The first of them in its text, and how many.
    from: usize,
    n: usize,
    /// The first of them in the batch.
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
            pace: Pace::new(settings.t_step),
            context,
            drafts,
            settings,
            inbox,
            metrics,
            gauges,
            waiting: Vec::new(),
            running: Vec::new(),
            rescalings: Vec::new(),
            batch: Batch::new(),
            candidates: Candidates::default(),
        }
    }

    /// Works until the inbox is over. A panic is the end of what is under way, and of nothing else.
    pub fn run(mut self) {
        loop {
            match catch_unwind(AssertUnwindSafe(|| self.step(true))) {
                Ok(true) => {}
                Ok(false) => return,
                Err(_) => self.begin_anew(),
            }
        }
    }

    /// Fails what is under way and forgets all that was computed: after a panic nobody knows what is right of it.
    pub fn begin_anew(&mut self) {
        for running in self.running.drain(..) {
            let text = "the model could not be computed: the program has failed at it".to_owned();
            running
                .work
                .generations
                .iter()
                .for_each(|g| g.say(Event::Failed(text.clone())));
        }
        self.batch.clear();
        self.context.clear();
        if let Some(drafts) = &mut self.drafts {
            drafts.begin_anew();
        }
        self.sequences = Sequences::new(self.context.params().n_seq_max);
    }

    /// Looks at what has come, and computes once. Where there is nothing to do it waits, if it `may_wait`. False once the inbox is over.
    pub fn step(&mut self, may_wait: bool) -> bool {
        let is_idle = self.running.is_empty() && self.waiting.is_empty();
        if is_idle {
            self.metrics.rest();
        }
        if !self.inbox.take(&mut self.waiting, is_idle && may_wait) {
            return false;
        }
        self.metrics.begin_step();
        self.forget_abandoned();
        self.end_late();
        for command in self.inbox.commands() {
            command(self);
        }
        self.apply_rescalings();
        if self.rescalings.is_empty() {
            self.begin_works();
        }
        self.inbox.set_waiting(self.waiting.len());
        self.decode_step();
        self.prompt_step();
        self.show();
        true
    }

    /// Tells how things stand.
    fn show(&self) {
        let (n_running, n_kept) = self.sequences.n_busy_and_idle();
        *self.gauges.lock().unwrap_or_else(PoisonError::into_inner) = Gauges {
            n_running,
            n_waiting: self.waiting.len(),
            n_kept,
            n_used: self.context.n_used(),
            // Sequences that share a beginning share its cells.
            n_busy: self.sequences.n_busy_tokens().min(self.context.n_used()),
            n_ctx: self.context.n_ctx(),
            is_limited: self.context.is_limited(),
        };
    }

    /// Stops work that nobody waits for. What it has computed may go at any time.
    fn forget_abandoned(&mut self) {
        let before = self.waiting.len() + self.running.len();
        self.waiting.retain(|work| !work.is_abandoned());
        for i in (0..self.running.len()).rev() {
            if self.running[i].work.is_abandoned() {
                let gone = self.running.swap_remove(i);
                self.sequences.leave(gone.seq);
            }
        }
        self.metrics
            .n_abandoned
            .add(before - self.waiting.len() - self.running.len());
    }

    /// Ends what has had its time, wherever it is.
    fn end_late(&mut self) {
        for mut work in self.waiting.extract_if(.., |work| work.is_late()) {
            work.end_late(0);
        }
        for i in (0..self.running.len()).rev() {
            if self.running[i].work.is_late() {
                let mut gone = self.running.swap_remove(i);
                gone.work.end_late(gone.n_cached);
                self.sequences.leave(gone.seq);
            }
        }
    }

    /// Gives sequences to works that wait, as long as there is room.
    fn begin_works(&mut self) {
        let mut blocked: Vec<u64> = Vec::new();
        while blocked.len() < MAX_BLOCKED && self.n_promised() < self.settings.n_parallel {
            let running = |client| self.running.iter().filter(|r| r.work.client == client).count();
            let order = order(&self.waiting, running);
            let next = order.into_iter().find(|&i| !blocked.contains(&self.waiting[i].arrival));
            let Some(i) = next else { return };
            let work = self.waiting.swap_remove(i);
            match self.place(&work) {
                Some(seq) => {
                    self.begin(work, seq);
                    let passed = self.waiting.iter_mut().filter(|w| blocked.contains(&w.arrival));
                    passed.for_each(|w| w.n_overtaken += 1);
                }
                None if self.running.is_empty() => {
                    let text = "there is no room in the context for the prompt".to_owned();
                    work.generations.iter().for_each(|g| g.say(Event::Failed(text.clone())));
                }
                None => {
                    let must_wait = work.n_overtaken >= MAX_OVERTAKEN;
                    blocked.push(work.arrival);
                    self.waiting.push(work);
                    if must_wait {
                        return;
                    }
                }
            }
        }
    }

    /// Sequences in use, with those that continuations of the same prompt will have.
    fn n_promised(&self) -> usize {
        self.running.iter().map(|r| r.work.generations.len()).sum()
    }

    /// Goes on with a work in its sequence.
    fn begin(&mut self, mut work: Work, seq: usize) {
        let n_cached = self.sequences.held(seq).len();
        if !work.is_told {
            self.metrics.n_queried.add(work.n_prompt);
            self.metrics.n_cached.add(n_cached);
            self.metrics.queued.observe(work.arrived.elapsed());
        }
        work.n_overtaken = 0;
        self.running.push(Running {
            work,
            seq,
            n_cached,
            begun: Instant::now(),
        });
    }

    /// A sequence that holds as much of the text as others have computed, with room for the rest.
    fn place(&mut self, work: &Work) -> Option<usize> {
        if self.n_promised() + work.generations.len() > self.settings.n_parallel {
            return None;
        }
        // The last token is computed in any case: its logits are needed.
        let reusable = &work.tokens[..work.tokens.len() - 1];
        let found = self.sequences.best_match(reusable).filter(|_| work.reuse);
        let seq = match found {
            Some(found) => self.reuse(found)?,
            None => self.empty_sequence(None)?,
        };
        self.sequences.take(seq);
        let n_left = work.tokens.len() - self.sequences.held(seq).len();
        let growth = match self.running.len() {
            0 => 0,
            n => GROWTH * (n + 1),
        };
        if self.has_room(n_left + growth) {
            return Some(seq);
        }
        self.sequences.leave(seq);
        None
    }

    /// A sequence that holds what is common: the one found, if it has little else, or another that shares it.
    fn reuse(&mut self, found: Match) -> Option<usize> {
        let Match { seq, n_common, is_idle } = found;
        let n_held = self.sequences.held(seq).len();
        let has_little_else = n_held - n_common <= n_held / 4;
        let other = match is_idle && has_little_else {
            true => None,
            false => self.empty_sequence(Some(seq)),
        };
        match other {
            None if is_idle => {
                self.cut(seq, n_common);
                Some(seq)
            }
            None => None,
            Some(other) => {
                // Not every memory can be shared at any place: what cannot is computed anew.
                if self.context.seq_cp(seq, other, ..).is_ok() {
                    self.sequences.copy(seq, other);
                    self.cut(other, n_common);
                }
                Some(other)
            }
        }
    }

    /// Cuts what a sequence holds to `keep` tokens, or to fewer if the memory cannot go back to just there.
    fn cut(&mut self, seq: usize, keep: usize) {
        if keep >= self.sequences.held(seq).len() {
            return;
        }
        let left = match self.context.seq_rm(seq, keep..) {
            Ok(()) => keep,
            // Recurrent states are kept of some positions.
            Err(MemoryError::StateForgotten { available, .. }) => {
                let before = available.into_iter().rev().find(|&at| at < keep);
                before.filter(|&at| self.context.seq_rm(seq, at..).is_ok()).unwrap_or(0)
            }
            // Windows may have forgotten what comes before the cut.
            Err(_) => 0,
        };
        if left == 0 {
            self.empty(seq);
        }
        self.sequences.truncate(seq, left);
    }

    /// Removes all that a sequence holds.
    pub(super) fn empty(&mut self, seq: usize) {
        let removed = self.context.seq_rm(seq, ..);
        debug_assert!(removed.is_ok(), "a whole sequence can always go: {removed:?}");
        self.sequences.clear(seq);
    }

    /// An empty sequence, one that was kept if there is no other.
    fn empty_sequence(&mut self, but: Option<usize>) -> Option<usize> {
        if let Some(seq) = self.sequences.free() {
            return Some(seq);
        }
        let seq = self.sequences.oldest_idle(but)?;
        self.empty(seq);
        Some(seq)
    }

    /// Cells that nothing holds.
    fn n_free(&self) -> usize {
        match self.context.is_limited() {
            true => self.context.n_ctx() - self.context.n_used(),
            false => usize::MAX,
        }
    }

    /// True if so many tokens fit beside what running texts still need of their prompts. What is kept goes for it.
    fn has_room(&mut self, n: usize) -> bool {
        let promised: usize = self.running.iter().map(|r| self.n_left(r)).sum();
        self.free_cells(n + promised)
    }

    /// Lets kept sequences go until so many cells are free. False if they never are.
    pub(super) fn free_cells(&mut self, n: usize) -> bool {
        while self.n_free() < n {
            let Some(seq) = self.sequences.oldest_idle(None) else {
                return false;
            };
            self.empty(seq);
        }
        true
    }

    /// Tokens of a running text that are not computed.
    fn n_left(&self, running: &Running) -> usize {
        running.work.tokens.len() - self.sequences.held(running.seq).len()
    }

    /// Makes room for so many tokens: kept sequences go, then running ones have to wait, the youngest first. One that is alone is over.
    fn make_room(&mut self, n: impl Fn(&Batcher) -> usize) {
        while !self.free_cells(n(self)) {
            let youngest = |i: &usize| {
                let work = &self.running[*i].work;
                (std::cmp::Reverse(work.priority), work.arrival)
            };
            let Some(i) = (0..self.running.len()).max_by_key(youngest) else {
                return;
            };
            let mut gone = self.running.swap_remove(i);
            if self.running.is_empty() {
                gone.work
                    .generations
                    .iter_mut()
                    .for_each(|g| g.end(Finish::ContextFull));
                self.sequences.leave(gone.seq);
                return;
            }
            self.metrics.n_preempted.add(1);
            self.empty(gone.seq);
            // It begins at its first token again.
            if let Some((_, rated)) = &mut gone.work.prompt_logprobs {
                rated.clear();
            }
            self.waiting.push(gone.work);
        }
    }

    /// Computes the next token of each text under way, and with them short ends of prompts.
    fn decode_step(&mut self) {
        let is_single = |b: &Batcher, r: &Running| b.n_left(r) == 1;
        self.make_room(|b| b.running.iter().filter(|r| is_single(b, r)).count());
        let n_single = self.running.iter().filter(|r| is_single(self, r)).count();
        self.hand_out_drafters();
        if self.drafts.is_some() && n_single > 0 {
            // Drafts are worth more than what is only kept.
            self.free_cells(FEW);
        }
        let mut few = FEW.saturating_sub(n_single).min(self.n_free().saturating_sub(n_single));
        let mut parts = Vec::new();
        for at in 0..self.running.len() {
            let n = self.n_left(&self.running[at]);
            let is_short = n > 1 && n <= few && self.running[at].work.prompt_logprobs.is_none();
            if n == 1 || is_short {
                few -= if is_short { n } else { 0 };
                parts.push((at, n));
            }
        }
        let start = Instant::now();
        self.metrics.n_decoded_sequences.add(n_single);
        let singles: Vec<usize> = parts.iter().map(|(at, _)| *at).collect();
        // The end of a prompt is told of where it is computed.
        let are_texts = parts.len() == n_single && singles.iter().all(|&at| self.running[at].work.is_told);
        if !are_texts || !self.decode_with_drafts(&singles) {
            self.compute(&parts);
        }
        if n_single > 0 {
            self.metrics.t_decode.add_time(start.elapsed());
        }
    }

    /// Computes parts of prompts: as much as others can wait for.
    fn prompt_step(&mut self) {
        let n_batch = self.context.params().n_batch;
        let most = n_batch.min(self.context.params().n_ubatch);
        let budget = match self.running.iter().any(|r| self.n_left(r) == 1) {
            true => self.pace.budget(most),
            false => most,
        };
        let left_of_prompts = |b: &Batcher| -> usize {
            let left = b.running.iter().map(|r| b.n_left(r));
            left.filter(|&n| n > 1).sum()
        };
        self.make_room(|b| left_of_prompts(b).min(budget));
        let mut prompts: Vec<usize> = (0..self.running.len())
            .filter(|&i| self.n_left(&self.running[i]) > 1)
            .collect();
        prompts.sort_by_key(|&i| self.running[i].work.arrival);
        let left: Vec<usize> = prompts.iter().map(|&i| self.n_left(&self.running[i])).collect();
        let shares = divide(&left, budget, n_batch.min(self.n_free()));
        let shares = prompts.iter().zip(shares).map(|(&at, share)| {
            let wants_rows = self.running[at].work.prompt_logprobs.is_some();
            (at, if wants_rows { share.min(MAX_ROWS) } else { share })
        });
        let parts: Vec<(usize, usize)> = shares.filter(|(_, share)| *share > 0).collect();
        let n: usize = parts.iter().map(|(_, n)| n).sum();
        let start = Instant::now();
        self.compute(&parts);
        if n > 0 {
            let time = start.elapsed();
            self.pace.record(n, time);
            self.metrics.t_prompt.add_time(time);
        }
    }

    /// Computes the next `n` tokens of the running texts `at`, and lets those that are complete go on.
    fn compute(&mut self, parts: &[(usize, usize)]) {
        if parts.is_empty() {
            return;
        }
        let mut parts = self.fill_batch(parts);
        self.metrics.n_decode.add(1);
        let decoded = self.context.decode(&self.batch);
        let mut failed: Vec<(usize, String)> = Vec::new();
        match decoded {
            Err(error) => failed.extend(parts.drain(..).map(|part| (part.at, sentence(&error)))),
            Ok(()) => {
                for rejection in self.context.rejected() {
                    let is_of = |part: &mut Part| rejection.seqs.contains(self.running[part.at].seq);
                    let rejected = parts.extract_if(.., is_of);
                    failed.extend(rejected.map(|part| (part.at, sentence(&rejection.error))));
                }
            }
        }
        for part in &parts {
            let running = &self.running[part.at];
            let tokens = &running.work.tokens[part.from..part.from + part.n];
            self.sequences.extend(running.seq, tokens);
            self.metrics.n_tokens_max.raise(part.from + part.n);
            if !running.work.is_told {
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
        let over = self.go_on(&parts);
        self.end_works(over, failed);
    }

    /// Ends works that are over, and those that have failed with what is to be said of it.
    pub(super) fn end_works(&mut self, mut over: Vec<usize>, failed: Vec<(usize, String)>) {
        for (at, text) in failed {
            let running = &self.running[at];
            running
                .work
                .generations
                .iter()
                .for_each(|g| g.say(Event::Failed(text.clone())));
            let seq = running.seq;
            self.empty(seq);
            over.push(at);
        }
        over.sort_unstable();
        for at in over.into_iter().rev() {
            let gone = self.running.swap_remove(at);
            self.sequences.leave(gone.seq);
        }
    }

    fn fill_batch(&mut self, parts: &[(usize, usize)]) -> Vec<Part> {
        self.batch.clear();
        let mut filled = Vec::with_capacity(parts.len());
        for &(at, n) in parts {
            let running = &self.running[at];
            let from = self.sequences.held(running.seq).len();
            let (row, seqs) = (self.batch.len(), SeqSet::one(running.seq));
            let wants_rows = running.work.prompt_logprobs.is_some();
            for (i, &token) in running.work.tokens[from..from + n].iter().enumerate() {
                let is_last = from + i + 1 == running.work.tokens.len();
                self.batch.push(token, from + i, seqs, is_last || wants_rows);
            }
            filled.push(Part { at, from, n, row });
        }
        filled
    }

    /// Chooses the next token of each text that is complete, and tells what a prompt took where that is one. The texts that are over.
    fn go_on(&mut self, parts: &[Part]) -> Vec<usize> {
        let mut rows: Vec<(usize, usize)> = Vec::new();
        for part in parts {
            self.rate_prompt(part);
            if self.n_left(&self.running[part.at]) > 0 {
                continue;
            }
            let row = part.row + part.n - 1;
            rows.push((part.at, row));
            self.tell_prompt(part.at);
            rows.extend(self.fork(part.at).map(|at| (at, row)));
        }
        let mut over = Vec::new();
        for (at, row) in rows {
            let work = &mut self.running[at].work;
            let generation = &mut work.generations[0];
            let logits = self.context.logits(row).unwrap_or_default();
            if generation.wants_nothing() {
                generation.end(Finish::Limit);
                over.push(at);
                continue;
            }
            match generation.next(logits, self.model.vocab(), &mut self.candidates) {
                Step::On(token) => work.tokens.push(token),
                Step::Over => over.push(at),
            }
        }
        over
    }

    /// Notes how likely the tokens of a prompt are that follow a part of it, if that is wanted.
    fn rate_prompt(&mut self, part: &Part) {
        let work = &mut self.running[part.at].work;
        let Some((n_top, found)) = &mut work.prompt_logprobs else {
            return;
        };
        let prompt: &[Token] = &work.tokens[..work.n_prompt];
        for i in 0..part.n {
            let next = prompt.get(part.from + i + 1);
            if let Some((&next, logits)) = next.zip(self.context.logits(part.row + i)) {
                found.push(logprob(logits, next, *n_top, &mut self.candidates));
            }
        }
    }

    /// Tells once that a prompt is computed.
    fn tell_prompt(&mut self, at: usize) {
        let running = &mut self.running[at];
        let work = &mut running.work;
        if std::mem::replace(&mut work.is_told, true) {
            return;
        }
        self.metrics.to_first_token.observe(work.arrived.elapsed());
        let logprobs = work.prompt_logprobs.take().map(|(_, found)| found);
        work.generations[0].say(Event::Prompt(PromptDone {
            n_prompt: work.n_prompt,
            n_cached: running.n_cached,
            t_waited: running.begun - work.arrived,
            t_prompt: running.begun.elapsed(),
            logprobs: logprobs.unwrap_or_default(),
        }));
    }

    /// Gives each further continuation of a prompt that is computed a sequence that shares it. Where they run.
    fn fork(&mut self, at: usize) -> std::ops::Range<usize> {
        let first = self.running.len();
        let others = self.running[at].work.generations.split_off(1);
        for generation in others {
            let (from, n_cached) = (self.running[at].seq, self.running[at].n_cached);
            // As many were promised when the prompt was begun, so there is one, and it is empty.
            let Some(seq) = self.empty_sequence(Some(from)) else {
                generation.say(Event::Failed(
                    "there is no sequence left for another continuation".to_owned(),
                ));
                continue;
            };
            if let Err(error) = self.context.seq_cp(from, seq, ..) {
                generation.say(Event::Failed(error.to_string()));
                continue;
            }
            self.sequences.copy(from, seq);
            self.sequences.take(seq);
            let work = &self.running[at].work;
            let work = Work {
                tokens: work.tokens.clone(),
                generations: vec![generation],
                prompt_logprobs: None,
                id: work.id.clone(),
                ..*work
            };
            self.running.push(Running {
                work,
                seq,
                n_cached,
                begun: Instant::now(),
            });
        }
        first..self.running.len()
    }
}

pub(super) fn sentence(error: &DecodeError) -> String {
    format!("the model could not be computed: {error}")
}

/// Time that a step with prompts is to take while texts wait, by default.
pub const STEP: Duration = Duration::from_millis(100);
