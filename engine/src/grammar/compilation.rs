//! Limits the time and the number of compilations.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use llguidance::{CancellationHandle, Matcher};

use super::{GrammarError, STACK};

/// Time limit of a compilation.
pub const LIMIT: Duration = Duration::from_secs(5);
/// Maximum time to wait for other compilations.
const MAX_WAIT: Duration = Duration::from_secs(1);
/// Maximum number of compilations at the same time.
const MAX_AT_ONCE: usize = 4;

/// Time between checks whether the result is still wanted.
const CHECK: Duration = Duration::from_millis(20);

/// Cancels the part of a compilation that computes a mask.
#[derive(Clone, Default)]
pub struct Cancel(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    is_cancelled: bool,
    handle: Option<CancellationHandle>,
}

impl Cancel {
    /// Sets the matcher that a cancellation ends, immediately if the compilation is already cancelled.
    pub fn of(&self, matcher: &Matcher) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.handle = matcher.cancellation_handle();
        state.apply();
    }

    fn cancel(&self) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.is_cancelled = true;
        state.apply();
    }
}

impl State {
    fn apply(&self) {
        if let (true, Some(handle)) = (self.is_cancelled, &self.handle) {
            handle.cancel();
        }
    }
}

/// Runs a compilation on a thread with a large stack for at most [`LIMIT`], while `is_wanted` returns true. The thread
/// of a compilation that exceeds the limit counts until it ends, but its result is dropped.
pub fn run<T: Send + 'static>(
    work: impl FnOnce(&Cancel) -> Result<T, GrammarError> + Send + 'static,
    is_wanted: &dyn Fn() -> bool,
) -> Result<T, GrammarError> {
    run_within(LIMIT, work, is_wanted)
}

/// Like [`run`], with another limit.
pub fn run_within<T: Send + 'static>(
    limit: Duration,
    work: impl FnOnce(&Cancel) -> Result<T, GrammarError> + Send + 'static,
    is_wanted: &dyn Fn() -> bool,
) -> Result<T, GrammarError> {
    let place = Place::take()?;
    let (sender, receiver) = mpsc::channel();
    let cancel = Cancel::default();
    let of_work = cancel.clone();
    let run = move || {
        let done = work(&of_work);
        drop(place);
        // The receiver is dropped after the limit.
        let _ = sender.send(done);
    };
    let thread = std::thread::Builder::new().name("grammar".to_owned()).stack_size(STACK);
    let no_thread =
        |e: std::io::Error| GrammarError::Refused(format!("cannot start a thread to compile the grammar: {e}"));
    thread.spawn(run).map_err(no_thread)?;
    let end = Instant::now() + limit;
    loop {
        match receiver.recv_timeout(CHECK) {
            Ok(done) => return done,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(GrammarError::Refused("compiling the grammar panicked".to_owned()));
            }
            Err(RecvTimeoutError::Timeout) if !is_wanted() => {
                cancel.cancel();
                return Err(GrammarError::Abandoned);
            }
            Err(RecvTimeoutError::Timeout) if Instant::now() >= end => {
                cancel.cancel();
                return Err(too_slow());
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}

/// Returns the error of a compilation that exceeds the limit.
pub fn too_slow() -> GrammarError {
    GrammarError::TooSlow {
        work: "compiling the grammar",
        limit: LIMIT,
    }
}

/// Right to compile.
struct Place;

static N_COMPILING: Mutex<usize> = Mutex::new(0);
static FREED: Condvar = Condvar::new();

impl Place {
    fn take() -> Result<Place, GrammarError> {
        let waited = FREED.wait_timeout_while(count(), MAX_WAIT, |n| *n >= MAX_AT_ONCE);
        let (mut n, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        if timeout.timed_out() {
            return Err(GrammarError::Busy(MAX_AT_ONCE));
        }
        *n += 1;
        Ok(Place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        *count() -= 1;
        FREED.notify_one();
    }
}

fn count() -> MutexGuard<'static, usize> {
    N_COMPILING.lock().unwrap_or_else(PoisonError::into_inner)
}
