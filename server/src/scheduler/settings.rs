//! Settings of the scheduler.

use std::time::Duration;

/// Scheduler settings.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Maximum number of sequences processed at once. Further sequences of the context serve as prefix cache.
    pub n_parallel: usize,
    /// Maximum number of queued requests.
    pub max_waiting: usize,
    /// Whether cached tokens and slots are shared by all clients. Otherwise, they belong to their client.
    pub shares_cache: bool,
    /// Target duration of a step with prefill while other sequences are decoding.
    pub t_step: Duration,
    /// Step duration after which the scheduler counts as stuck.
    pub t_stuck: Duration,
}

impl Settings {
    /// Returns the owner of the cached tokens of a client.
    pub fn cache_owner(&self, client: u64) -> u64 {
        if self.shares_cache { 0 } else { client }
    }
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            n_parallel: 4,
            max_waiting: 256,
            shares_cache: false,
            t_step: Duration::from_millis(100),
            t_stuck: Duration::from_secs(120),
        }
    }
}
