//! Queued requests: their order, and the inbox of the scheduler thread.

use std::cmp::Reverse;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use engine::sample::Token;
use llama::parts::ImageSpan;

use super::command::Command;
use super::generation::Generation;
use super::request::{Event, Finish, PromptDone, SubmitError, TokenLogprob};

/// A prompt and its completions.
pub struct Job {
    /// Prompt tokens, followed by generated tokens.
    pub tokens: Vec<Token>,
    /// Rows of images in the prompt, in order.
    pub images: Arc<[ImageSpan]>,
    /// Number of prompt tokens.
    pub n_prompt: usize,
    /// Completions; each gets a sequence once the prompt is processed.
    pub generations: Vec<Generation>,
    /// Reuse cached prefixes.
    pub reuse: bool,
    /// Log probabilities of the prompt so far, with the number of most likely tokens; `None` if not
    /// requested.
    pub prompt_logprobs: Option<(usize, Vec<TokenLogprob>)>,
    /// Report the progress of the prompt.
    pub wants_progress: bool,
    /// Id of the request, if any.
    pub id: Option<Arc<str>>,
    /// Client id.
    pub client: u64,
    /// Owner of the cached tokens.
    pub owner: u64,
    /// Scale of each LoRA adapter; `None` for the scales of the server.
    pub scales: Option<Arc<[f32]>>,
    /// Priority; higher values start first.
    pub priority: i32,
    /// Sequence number of arrival.
    pub arrival: u64,
    /// Time of arrival.
    pub arrived: Instant,
    /// Time limit from arrival.
    pub deadline: Option<Duration>,
    /// Number of later jobs that overtook this one because its prompt did not fit.
    pub n_overtaken: usize,
    /// The prompt event was sent. Set when a preempted job is recomputed.
    pub prompt_done_sent: bool,
}

impl Job {
    /// Returns true once all clients of the job have disconnected.
    pub fn is_abandoned(&self) -> bool {
        self.generations.iter().all(Generation::is_abandoned)
    }

    /// Returns the number of most likely tokens that suffice as the output of the prompt; 0 for all logits.
    pub fn n_best(&self) -> usize {
        let each = || self.generations.iter().map(Generation::n_best);
        if each().any(|n| n == 0) {
            return 0;
        }
        each().max().unwrap_or(0)
    }

    /// Ends the job with the output so far, which may be empty.
    pub fn expire(&mut self, n_cached: usize) {
        let done = PromptDone {
            n_prompt: self.n_prompt,
            n_cached,
            t_waited: self.arrived.elapsed(),
            ..PromptDone::default()
        };
        if let Some(first) = self.generations.first()
            && !self.prompt_done_sent
        {
            first.send(Event::Prompt(done));
        }
        self.generations.iter_mut().for_each(|g| g.end(Finish::Limit));
    }

    /// Sends an event to all clients of the job.
    pub fn send_all(&self, event: &Event) {
        for generation in &self.generations {
            generation.send(event.clone());
        }
    }

    /// Returns true once the deadline has passed.
    pub fn is_expired(&self) -> bool {
        self.deadline.is_some_and(|deadline| self.arrived.elapsed() >= deadline)
    }
}

/// Returns the order of admission: by priority, then by fewest running jobs of the client, then by arrival.
pub fn order(waiting: &[Job], running: impl Fn(u64) -> usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..waiting.len()).collect();
    order.sort_by_key(|&i| {
        let job = &waiting[i];
        (Reverse(job.priority), running(job.client), job.arrival)
    });
    order
}

/// Inbox of the scheduler thread.
#[derive(Default)]
pub struct Inbox {
    state: Mutex<InboxState>,
    arrived: Condvar,
}

#[derive(Default)]
struct InboxState {
    new: Vec<Job>,
    commands: Vec<Command>,
    /// Queued jobs, in the inbox and on the thread.
    n_waiting: usize,
    n_arrived: u64,
    is_closed: bool,
    is_over: bool,
}

impl Inbox {
    /// Adds the jobs of a request, or returns an error if `max_waiting` jobs are queued. Only the first job of a
    /// request counts.
    pub fn push(&self, jobs: Vec<Job>, max_waiting: usize, retry_after: Duration) -> Result<(), SubmitError> {
        let mut state = self.lock();
        if state.is_closed || state.is_over {
            return Err(SubmitError::Closed);
        }
        let n_waiting = state.n_waiting;
        if n_waiting >= max_waiting {
            return Err(SubmitError::Busy { n_waiting, retry_after });
        }
        for job in jobs {
            let arrival = state.n_arrived;
            state.n_arrived += 1;
            state.n_waiting += 1;
            state.new.push(Job { arrival, ..job });
        }
        self.arrived.notify_one();
        Ok(())
    }

    /// Moves new jobs to `waiting`. With `is_idle`, blocks until something arrives. Returns false once the
    /// inbox has ended.
    pub fn take(&self, waiting: &mut Vec<Job>, is_idle: bool) -> bool {
        let mut state = self.lock();
        let nothing = |state: &InboxState| state.new.is_empty() && state.commands.is_empty() && !state.is_over;
        while is_idle && waiting.is_empty() && nothing(&state) {
            state = self.arrived.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        waiting.append(&mut state.new);
        state.n_waiting = waiting.len();
        !state.is_over
    }

    /// Adds a command. Returns false if the thread has ended.
    pub fn command(&self, command: Command) -> bool {
        let mut state = self.lock();
        if !state.is_over {
            state.commands.push(command);
            self.arrived.notify_one();
        }
        !state.is_over
    }

    /// Removes and returns the pending commands.
    pub fn commands(&self) -> Vec<Command> {
        std::mem::take(&mut self.lock().commands)
    }

    /// Reports how many of the taken jobs are still queued.
    pub fn set_waiting(&self, n_taken: usize) {
        let mut state = self.lock();
        state.n_waiting = n_taken + state.new.len();
    }

    /// Rejects further jobs.
    pub fn close(&self) {
        self.lock().is_closed = true;
    }

    /// Makes the thread stop after its current step, or records that it has stopped.
    pub fn end(&self) {
        let mut state = self.lock();
        state.is_over = true;
        state.new.clear();
        state.commands.clear();
        state.n_waiting = 0;
        self.arrived.notify_all();
    }

    /// Returns the number of queued jobs.
    pub fn n_waiting(&self) -> usize {
        self.lock().n_waiting
    }

    /// Returns true while jobs are accepted.
    pub fn is_open(&self) -> bool {
        let state = self.lock();
        !state.is_closed && !state.is_over
    }

    /// Returns true once the thread has stopped or will stop.
    pub fn is_over(&self) -> bool {
        self.lock().is_over
    }

    fn lock(&self) -> MutexGuard<'_, InboxState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(client: u64, priority: i32, arrival: u64) -> Job {
        Job {
            tokens: Vec::new(),
            images: Arc::new([]),
            n_prompt: 0,
            generations: Vec::new(),
            reuse: true,
            prompt_logprobs: None,
            wants_progress: false,
            id: None,
            client,
            owner: client,
            scales: None,
            priority,
            arrival,
            arrived: Instant::now(),
            deadline: None,
            n_overtaken: 0,
            prompt_done_sent: false,
        }
    }

    #[test]
    fn order_by_priority_then_fairness() {
        let waiting = [job(1, 0, 0), job(1, 0, 1), job(2, 0, 2), job(1, 5, 3)];
        let order = |busy: u64| order(&waiting, |client| usize::from(client == busy));
        assert_eq!(order(9), [3, 0, 1, 2]);
        assert_eq!(order(1), [3, 2, 0, 1]);
    }

    #[test]
    fn full_queue_rejects_requests() {
        let (inbox, wait) = (Inbox::default(), Duration::from_secs(3));
        let push = |max| inbox.push(vec![job(0, 0, 0)], max, wait);
        push(2).unwrap();
        push(2).unwrap();
        assert!(matches!(push(2), Err(SubmitError::Busy { n_waiting: 2, .. })));
        let mut taken = Vec::new();
        assert!(inbox.take(&mut taken, true));
        assert_eq!(taken.iter().map(|w| w.arrival).collect::<Vec<_>>(), [0, 1]);
        assert!(push(2).is_err(), "the queue is full until the thread reports progress");
        taken.pop();
        inbox.set_waiting(taken.len());
        push(2).unwrap();
        inbox.close();
        assert!(matches!(push(9), Err(SubmitError::Closed)));
        assert!(
            inbox.take(&mut taken, true),
            "jobs taken before `close` are still completed"
        );
        inbox.end();
        assert!(!inbox.take(&mut Vec::new(), true));
    }
}
