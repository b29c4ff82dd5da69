//! Use of a loaded model: requests in flight, and the time after which an idle model is unloaded.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::ollama::KeepAlive;

/// Use of a loaded model.
pub struct Activity {
    n_in_flight: AtomicUsize,
    state: Mutex<State>,
}

struct State {
    /// End of the last request.
    ended: Instant,
    keep_alive: Option<KeepAlive>,
}

impl Activity {
    /// Creates the activity of a model that has just been loaded.
    pub fn new() -> Arc<Activity> {
        Arc::new(Activity {
            n_in_flight: AtomicUsize::new(0),
            state: Mutex::new(State {
                ended: Instant::now(),
                keep_alive: None,
            }),
        })
    }

    /// Counts a request as in flight until the returned value is dropped. Only a `is_use` restarts the idle time.
    pub fn begin(self: &Arc<Activity>, is_use: bool) -> InFlightGuard {
        self.n_in_flight.fetch_add(1, Ordering::AcqRel);
        InFlightGuard {
            activity: self.clone(),
            is_use,
        }
    }

    /// Returns true if a request is in flight.
    pub fn is_busy(&self) -> bool {
        self.n_in_flight.load(Ordering::Acquire) > 0
    }

    /// Sets the time that the model stays loaded after this and later requests.
    pub fn keep(&self, keep_alive: KeepAlive) {
        self.lock().keep_alive = Some(keep_alive);
    }

    /// Returns true if the model has been idle for the time of the last request that set one, or for `default`.
    pub fn is_expired(&self, default: Option<Duration>) -> bool {
        let state = self.lock();
        let limit = match state.keep_alive {
            Some(KeepAlive::Forever) => None,
            Some(KeepAlive::For(limit)) => Some(limit),
            None => default,
        };
        !self.is_busy() && limit.is_some_and(|limit| state.ended.elapsed() >= limit)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request in flight.
pub struct InFlightGuard {
    activity: Arc<Activity>,
    is_use: bool,
}

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        if self.is_use {
            self.activity.lock().ended = Instant::now();
        }
        self.activity.n_in_flight.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_time_starts_at_the_end_of_the_last_use() {
        let activity = Activity::new();
        let guard = activity.begin(true);
        activity.keep(KeepAlive::For(Duration::ZERO));
        assert!(activity.is_busy() && !activity.is_expired(None));
        drop(guard);
        assert!(activity.is_expired(None), "the request overrides the default");
        activity.keep(KeepAlive::Forever);
        assert!(!activity.is_expired(Some(Duration::ZERO)));
        let other = Activity::new();
        assert!(!other.is_expired(None) && other.is_expired(Some(Duration::ZERO)));
        assert!(!other.is_expired(Some(Duration::from_secs(60))));
    }
}
