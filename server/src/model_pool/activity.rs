//! Use of a loaded model: requests in flight, and the time after which an idle model is unloaded.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value as Json;

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

/// Time that a model stays loaded after a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeepAlive {
    /// The model is not unloaded as idle.
    Forever,
    /// The model is unloaded after this time without requests.
    For(Duration),
}

impl KeepAlive {
    /// Reads Ollama's field: seconds, or a duration such as `5m` or `1h30m`; negative: forever. Other values
    /// return `None`.
    pub fn of_json(value: &Json) -> Option<KeepAlive> {
        let seconds = match value {
            Json::String(text) => seconds_of(text)?,
            value => value.as_f64()?,
        };
        if seconds < 0.0 {
            return Some(KeepAlive::Forever);
        }
        Duration::try_from_secs_f64(seconds).ok().map(KeepAlive::For)
    }
}

/// Parses a duration in Go's format; a number without unit is in seconds.
fn seconds_of(text: &str) -> Option<f64> {
    let (sign, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (-1.0, rest),
        None => (1.0, text),
    };
    if let Ok(seconds) = rest.parse::<u32>() {
        return Some(sign * f64::from(seconds));
    }
    let mut total = 0.0;
    while !rest.is_empty() {
        let n_digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, behind) = rest.split_at(n_digits);
        let n_letters = behind.find(|c: char| c.is_ascii_digit()).unwrap_or(behind.len());
        let (unit, behind) = behind.split_at(n_letters);
        let unit = match unit {
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return None,
        };
        total += number.parse::<f64>().ok()? * unit;
        rest = behind;
    }
    Some(sign * total)
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
    use serde_json::json;

    use super::*;

    #[test]
    fn keep_alive_accepts_seconds_and_durations() {
        let seconds = |n: f64| Some(KeepAlive::For(Duration::from_secs_f64(n)));
        for (value, expected) in [
            (json!(0), seconds(0.0)),
            (json!(2.5), seconds(2.5)),
            (json!("5m"), seconds(300.0)),
            (json!("1h30m"), seconds(5400.0)),
            (json!("1.5h"), seconds(5400.0)),
            (json!("250ms"), seconds(0.25)),
            (json!("10"), seconds(10.0)),
            (json!(-1), Some(KeepAlive::Forever)),
            (json!("-1m"), Some(KeepAlive::Forever)),
            (json!("soon"), None),
            (json!("5 m"), None),
            (json!("5"), seconds(5.0)),
            (json!(1e300), None),
            (json!([]), None),
        ] {
            assert_eq!(KeepAlive::of_json(&value), expected, "{value}");
        }
    }

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
