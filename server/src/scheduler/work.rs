//! Requests on their way through the scheduler: those that wait, in which order, and how many may.

use std::cmp::Reverse;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use engine::sample::Token;

use super::commands::Command;
use super::generation::Generation;
use super::request::{Event, Finish, PromptDone, SubmitError, TokenLogprob};

/// A text, and what is to be said after it.
pub struct Work {
    /// The prompt, and behind it what was generated.
    pub tokens: Vec<Token>,
    /// Tokens of the prompt.
    pub n_prompt: usize,
    /// Its continuations; after the prompt is computed each has a sequence of its own.
    pub generations: Vec<Generation>,
    /// Use what other sequences hold.
    pub reuse: bool,
    /// Log probabilities of the prompt so far, if they are wanted: the number of most likely tokens beside.
    pub prompt_logprobs: Option<(usize, Vec<TokenLogprob>)>,
    /// What its request is called, if it has a name.
    pub id: Option<Arc<str>>,
    /// Whom it is for.
    pub client: u64,
    /// Greater ones come first.
    pub priority: i32,
    /// Its number in the order of arrival.
    pub arrival: u64,
    /// When it came.
    pub arrived: Instant,
    /// Most time from then on.
    pub deadline: Option<Duration>,
    /// How often later ones were begun before it, for want of room for it.
    pub n_overtaken: usize,
    /// The prompt's end was told: what is computed anew was lost for want of room.
    pub is_told: bool,
}

impl Work {
    /// Nobody waits for it any more.
    pub fn is_abandoned(&self) -> bool {
        self.generations.iter().all(Generation::is_abandoned)
    }

    /// Ends it with what it has said so far, which may be nothing.
    pub fn end_late(&mut self, n_cached: usize) {
        let done = PromptDone {
            n_prompt: self.n_prompt,
            n_cached,
            t_waited: self.arrived.elapsed(),
            ..PromptDone::default()
        };
        if let Some(first) = self.generations.first().filter(|_| !self.is_told) {
            first.say(Event::Prompt(done));
        }
        self.generations.iter_mut().for_each(|g| g.end(Finish::Limit));
    }

    /// Its time is over.
    pub fn is_late(&self) -> bool {
        self.deadline.is_some_and(|deadline| self.arrived.elapsed() >= deadline)
    }
}

/// The order in which works are begun: by priority, then for clients of which the fewest are worked on, then as they came.
pub fn order(waiting: &[Work], running: impl Fn(u64) -> usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..waiting.len()).collect();
    order.sort_by_key(|&i| {
        let work = &waiting[i];
        (Reverse(work.priority), running(work.client), work.arrival)
    });
    order
}

/// Where requests are left for the thread that does them.
#[derive(Default)]
pub struct Inbox {
    state: Mutex<InboxState>,
    arrived: Condvar,
}

#[derive(Default)]
struct InboxState {
    new: Vec<Work>,
    commands: Vec<Command>,
    /// Works that wait, here or with the thread.
    n_waiting: usize,
    n_arrived: u64,
    is_closed: bool,
    is_over: bool,
}

impl Inbox {
    /// Leaves work, unless `max_waiting` wait already.
    pub fn push(&self, mut work: Work, max_waiting: usize, retry_after: Duration) -> Result<(), SubmitError> {
        let mut state = self.lock();
        if state.is_closed || state.is_over {
            return Err(SubmitError::Closed);
        }
        let n_waiting = state.n_waiting;
        if n_waiting >= max_waiting {
            return Err(SubmitError::Busy { n_waiting, retry_after });
        }
        work.arrival = state.n_arrived;
        state.n_arrived += 1;
        state.n_waiting += 1;
        state.new.push(work);
        self.arrived.notify_one();
        Ok(())
    }

    /// Takes what has come, and says how many wait now. With `is_idle` waits until something comes. False once all is over.
    pub fn take(&self, waiting: &mut Vec<Work>, is_idle: bool) -> bool {
        let mut state = self.lock();
        let nothing = |state: &InboxState| state.new.is_empty() && state.commands.is_empty() && !state.is_over;
        while is_idle && waiting.is_empty() && nothing(&state) {
            state = self.arrived.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        waiting.append(&mut state.new);
        state.n_waiting = waiting.len();
        !state.is_over
    }

    /// Leaves a command; false if nobody does it any more.
    pub fn command(&self, command: Command) -> bool {
        let mut state = self.lock();
        if !state.is_over {
            state.commands.push(command);
            self.arrived.notify_one();
        }
        !state.is_over
    }

    /// Takes the commands that have come.
    pub fn commands(&self) -> Vec<Command> {
        std::mem::take(&mut self.lock().commands)
    }

    /// Says how many of those taken still wait.
    pub fn set_waiting(&self, n_taken: usize) {
        let mut state = self.lock();
        state.n_waiting = n_taken + state.new.len();
    }

    /// Takes no more.
    pub fn close(&self) {
        self.lock().is_closed = true;
    }

    /// Ends the thread's work after its step, or says that it has ended.
    pub fn end(&self) {
        let mut state = self.lock();
        state.is_over = true;
        state.new.clear();
        state.commands.clear();
        state.n_waiting = 0;
        self.arrived.notify_all();
    }

    /// How many wait.
    pub fn n_waiting(&self) -> usize {
        self.lock().n_waiting
    }

    /// True as long as requests are taken.
    pub fn is_open(&self) -> bool {
        let state = self.lock();
        !state.is_closed && !state.is_over
    }

    /// True once the thread has ended or is to end.
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

    fn work(client: u64, priority: i32, arrival: u64) -> Work {
        Work {
            tokens: Vec::new(),
            n_prompt: 0,
            generations: Vec::new(),
            reuse: true,
            prompt_logprobs: None,
            id: None,
            client,
            priority,
            arrival,
            arrived: Instant::now(),
            deadline: None,
            n_overtaken: 0,
            is_told: false,
        }
    }

    #[test]
    fn clients_take_turns_and_priorities_come_first() {
        let waiting = [work(1, 0, 0), work(1, 0, 1), work(2, 0, 2), work(1, 5, 3)];
        let order = |busy: u64| order(&waiting, |client| usize::from(client == busy));
        assert_eq!(order(9), [3, 0, 1, 2]);
        assert_eq!(order(1), [3, 2, 0, 1]);
    }

    #[test]
    fn no_more_wait_than_agreed() {
        let (inbox, wait) = (Inbox::default(), Duration::from_secs(3));
        let push = |max| inbox.push(work(0, 0, 0), max, wait);
        push(2).unwrap();
        push(2).unwrap();
        assert!(matches!(push(2), Err(SubmitError::Busy { n_waiting: 2, .. })));
        let mut taken = Vec::new();
        assert!(inbox.take(&mut taken, true));
        assert_eq!(taken.iter().map(|w| w.arrival).collect::<Vec<_>>(), [0, 1]);
        assert!(push(2).is_err(), "they still wait");
        taken.pop();
        inbox.set_waiting(taken.len());
        push(2).unwrap();
        inbox.close();
        assert!(matches!(push(9), Err(SubmitError::Closed)));
        assert!(inbox.take(&mut taken, true), "what was taken is done");
        inbox.end();
        assert!(!inbox.take(&mut Vec::new(), true));
    }
}
