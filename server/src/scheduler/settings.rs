//! Settings of the scheduler.

use std::time::Duration;

/// Scheduler settings.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Maximum number of sequences processed at once. Further sequences of the context serve as prefix cache.
    pub n_parallel: usize,
    /// Maximum number of queued requests.
    pub max_waiting: usize,
    /// Target duration of a step with prefill while other sequences are decoding.
    pub t_step: Duration,
    /// Step duration after which the scheduler counts as stuck.
    pub t_stuck: Duration,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            n_parallel: 4,
            max_waiting: 256,
            t_step: Duration::from_millis(100),
            t_stuck: Duration::from_secs(120),
        }
    }
}
