//! Profiling of backends, op by op.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kernels::GgmlType;

/// A kind of work to measure.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Activity {
    /// Name of an op, or of other work of a backend.
    pub name: &'static str,
    /// Type of the weights, if the work is a matmul.
    pub weights: Option<GgmlType>,
}

/// Accumulated time of one activity.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpTime {
    /// The activity.
    pub activity: Activity,
    /// Number of times that the activity ran.
    pub n: u64,
    /// Total time.
    pub time: Duration,
}

/// Accumulates the time of backends by activity, from the start to the end of each run.
///
/// Profiling is enabled in [`BackendParams`](super::BackendParams) and has no cost when disabled. A context
/// adds the work of its own thread between runs: `graph` (building and allocating a graph), `inputs` (writing
/// inputs), and `results` (reading results).
///
/// With several threads, one thread is measured. Its waits for the other threads are recorded as the activity
/// `wait`.
#[derive(Clone, Debug, Default)]
pub struct Profile(Arc<Mutex<Vec<OpTime>>>);

impl Profile {
    /// Creates an empty profile.
    pub fn new() -> Profile {
        Profile::default()
    }

    /// Returns the times, longest first. Their sum is the time of all runs, except for the final wait of each
    /// run.
    pub fn times(&self) -> Vec<OpTime> {
        let mut times = self.lock().clone();
        times.sort_by_key(|t| std::cmp::Reverse(t.time));
        times
    }

    /// Discards all recorded times.
    pub fn clear(&self) {
        self.lock().clear();
    }

    /// Runs `work` and records its time under `name`.
    pub(crate) fn during<T>(&self, name: &'static str, work: impl FnOnce() -> T) -> T {
        let mut watch = self.watch();
        let result = work();
        watch.done(Activity { name, weights: None });
        result
    }

    /// Starts measuring a run.
    pub(super) fn watch(&self) -> RunTimer<'_> {
        RunTimer {
            times: self.lock(),
            since: Instant::now(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<OpTime>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Profiles are compared by identity.
impl PartialEq for Profile {
    fn eq(&self, other: &Profile) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// A run that is being measured.
pub(super) struct RunTimer<'a> {
    times: MutexGuard<'a, Vec<OpTime>>,
    since: Instant,
}

impl RunTimer<'_> {
    /// Attributes the time since the previous call, or since the start, to `activity`.
    pub(super) fn done(&mut self, activity: Activity) {
        let now = Instant::now();
        let time = now - self.since;
        self.since = now;
        if let Some(known) = self.times.iter_mut().find(|t| t.activity == activity) {
            known.n += 1;
            known.time += time;
        } else {
            self.times.push(OpTime { activity, n: 1, time });
        }
    }
}
