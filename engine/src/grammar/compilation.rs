//! Compilations, whose time and number are limited.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{GrammarError, STACK};

/// Time limit of a compilation.
pub const LIMIT: Duration = Duration::from_secs(5);
/// Maximum time to wait for other compilations.
const MAX_WAIT: Duration = Duration::from_secs(1);
/// Maximum number of compilations at the same time.
const MAX_AT_ONCE: usize = 4;

/// Runs a compilation on a thread with a large stack. The thread of a compilation that exceeds the limit counts
/// until it ends, but its result is dropped.
pub fn run<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, GrammarError> + Send + 'static,
) -> Result<T, GrammarError> {
    let place = Place::take()?;
    let (sender, receiver) = mpsc::channel();
    let run = move || {
        let done = work();
        drop(place);
        // The receiver is gone after the limit.
        let _ = sender.send(done);
    };
    let thread = std::thread::Builder::new().name("grammar".to_owned()).stack_size(STACK);
    let no_thread =
        |e: std::io::Error| GrammarError::Refused(format!("cannot start a thread to compile the grammar: {e}"));
    thread.spawn(run).map_err(no_thread)?;
    match receiver.recv_timeout(LIMIT) {
        Ok(done) => done,
        Err(RecvTimeoutError::Timeout) => Err(too_slow()),
        Err(RecvTimeoutError::Disconnected) => Err(GrammarError::Refused("compiling the grammar panicked".to_owned())),
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
