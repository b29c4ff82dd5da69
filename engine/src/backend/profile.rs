//! Where the time of a backend goes, op by op.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kernels::GgmlType;

/// What time is spent on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Activity {
    /// Name of an op, or of what a backend does beside computing nodes.
    pub name: &'static str,
    /// Type of a product's weights.
    pub weights: Option<GgmlType>,
}

/// Time spent on one kind of activity.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpTime {
    /// The kind.
    pub activity: Activity,
    /// How often.
    pub n: u64,
    /// All together.
    pub time: Duration,
}

/// Adds up the time of backends by kind of activity, from the beginning of each run to its end. Asked for in
/// [`BackendParams`](super::BackendParams); what is not asked for costs nothing.
///
/// A context adds what it does on its own thread between runs: `graph` (building one and placing it), `inputs` (writing them) and
/// `results` (reading them).
///
/// Of threads that compute together one is watched. It waits for the others now and then, which is an activity of its own (`wait`).
#[derive(Clone, Debug, Default)]
pub struct Profile(Arc<Mutex<Vec<OpTime>>>);

impl Profile {
    /// Nothing yet.
    pub fn new() -> Profile {
        Profile::default()
    }

    /// The times, longest first. Their sum is the time of all runs but for waiting at the very end of each.
    pub fn times(&self) -> Vec<OpTime> {
        let mut times = self.lock().clone();
        times.sort_by_key(|t| std::cmp::Reverse(t.time));
        times
    }

    /// Forgets all times.
    pub fn clear(&self) {
        self.lock().clear();
    }

    /// Adds the time of something that is done once.
    pub(crate) fn during<T>(&self, name: &'static str, work: impl FnOnce() -> T) -> T {
        let mut watch = self.watch();
        let result = work();
        watch.done(Activity { name, weights: None });
        result
    }

    /// Watches a run from now on.
    pub(super) fn watch(&self) -> Watch<'_> {
        Watch {
            times: self.lock(),
            since: Instant::now(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<OpTime>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A profile equals itself only.
impl PartialEq for Profile {
    fn eq(&self, other: &Profile) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// A run that is being watched.
pub(super) struct Watch<'a> {
    times: MutexGuard<'a, Vec<OpTime>>,
    since: Instant,
}

impl Watch<'_> {
    /// What was done since the last call, or the beginning, was this.
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
