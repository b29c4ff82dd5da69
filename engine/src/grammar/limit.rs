//! Time limits for llguidance, which bounds the number of its steps but not their duration. A watchdog thread
//! cancels the work of a matcher that exceeds its limit.
//!
//! Limits apply to the processor time of the working thread. On a busy machine, a thread can wait longer than any
//! limit before it runs, and cancelling its work would leave output unconstrained.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::thread_time::ThreadClock;

use llguidance::{CancellationHandle, Matcher};

/// Runs `work` on a matcher and cancels it after `limit` of this thread's processor time. A cancelled matcher fails all
/// further calls.
pub fn limited<T>(matcher: &mut Matcher, limit: Duration, work: impl FnOnce(&mut Matcher) -> T) -> T {
    let Some(handle) = matcher.cancellation_handle() else {
        return work(matcher);
    };
    let _watched = WATCHDOG.watch(handle, ThreadClock::of_this_thread(), limit);
    work(matcher)
}

static WATCHDOG: Watchdog = Watchdog {
    state: Mutex::new(State {
        watched: Vec::new(),
        n_watched: 0,
        thread: Thread::None,
    }),
    wake: Condvar::new(),
};

/// Period of the checks, which is the precision of the limits.
const TICK: Duration = Duration::from_millis(5);
/// Number of checks without work after which the thread sleeps until there is some.
const IDLE_TICKS: usize = 200;

struct Watchdog {
    state: Mutex<State>,
    wake: Condvar,
}

struct State {
    watched: Vec<Watched>,
    /// Number of all calls that were watched, which identifies the next one.
    n_watched: u64,
    thread: Thread,
}

struct Watched {
    id: u64,
    /// Clock of the working thread, which lives until the call is removed.
    clock: ThreadClock,
    /// Time of `clock` at which the call is cancelled.
    end: Duration,
    handle: CancellationHandle,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Thread {
    /// Not started.
    None,
    Running,
    /// Waiting for [`Watchdog::wake`].
    Asleep,
}

/// Removes a watched call when the call ends.
struct Guard(u64);

impl Drop for Guard {
    fn drop(&mut self) {
        WATCHDOG.lock().watched.retain(|watched| watched.id != self.0);
    }
}

impl Watchdog {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn watch(&'static self, handle: CancellationHandle, clock: ThreadClock, limit: Duration) -> Guard {
        let end = clock.now() + limit;
        let mut state = self.lock();
        let id = state.n_watched;
        state.n_watched += 1;
        state.watched.push(Watched { id, clock, end, handle });
        match state.thread {
            Thread::Running => {}
            Thread::Asleep => {
                state.thread = Thread::Running;
                self.wake.notify_one();
            }
            Thread::None => {
                let thread = std::thread::Builder::new().name("grammar-limits".to_owned());
                // Without the thread, there are no limits until the next attempt to start it.
                if thread.spawn(|| self.run()).is_ok() {
                    state.thread = Thread::Running;
                }
            }
        }
        Guard(id)
    }

    fn run(&self) {
        let mut n_idle = 0;
        loop {
            let mut state = self.lock();
            n_idle = if state.watched.is_empty() { n_idle + 1 } else { 0 };
            if n_idle > IDLE_TICKS {
                state.thread = Thread::Asleep;
                let woken = self.wake.wait_while(state, |state| state.thread == Thread::Asleep);
                drop(woken);
                n_idle = 0;
                continue;
            }
            let over = state
                .watched
                .iter()
                .filter(|watched| watched.end <= watched.clock.now());
            over.for_each(|watched| watched.handle.cancel());
            drop(state);
            std::thread::sleep(TICK);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    /// Time spent waiting, for example for a processor, does not count.
    #[test]
    fn thread_clock_advances_only_with_its_work() {
        let clock = ThreadClock::of_this_thread();
        let start = clock.now();
        std::thread::sleep(Duration::from_millis(60));
        let slept = clock.now() - start;
        assert!(slept < Duration::from_millis(30), "{slept:?}");
        let begin = Instant::now();
        while clock.now() - start < Duration::from_millis(60) {
            assert!(begin.elapsed() < Duration::from_secs(60), "the clock stands still");
        }
        // Other threads also read the clock.
        let read = std::thread::scope(|scope| scope.spawn(|| clock.now()).join());
        assert!(read.expect("the thread ends") >= start + Duration::from_millis(60));
    }
}
