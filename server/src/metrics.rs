//! What the scheduler counts.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::scheduler::Finish;

/// Counters and distributions since the start; gauges are in [`Gauges`].
#[derive(Debug)]
pub struct Metrics {
    /// Tokens of prompts that were computed.
    pub n_prompt: Counter,
    /// Tokens of prompts that were computed before.
    pub n_cached: Counter,
    /// Tokens of prompts, by the requests that have been begun.
    pub n_queried: Counter,
    /// Tokens generated.
    pub n_generated: Counter,
    /// Tokens guessed and verified.
    pub n_drafts: Counter,
    /// Those of them that were right.
    pub n_right: Counter,
    /// Time of steps with prompts, in microseconds.
    pub t_prompt: Counter,
    /// Time of steps with single tokens, in microseconds.
    pub t_decode: Counter,
    /// Calls of decode.
    pub n_decode: Counter,
    /// Sequences in the calls with single tokens.
    pub n_decoded_sequences: Counter,
    /// Sequences that had to give way.
    pub n_preempted: Counter,
    /// Most tokens that a sequence has held.
    pub n_tokens_max: Counter,
    /// Continuations that ended by themselves or by a stop text.
    pub n_stopped: Counter,
    /// Continuations that ended for want of tokens or room.
    pub n_limited: Counter,
    /// Requests whose client went before the end.
    pub n_abandoned: Counter,
    /// From the request to its first token.
    pub to_first_token: Histogram,
    /// From one token to the next of a continuation.
    pub between_tokens: Histogram,
    /// From the request to the beginning of its work.
    pub queued: Histogram,
    started: Instant,
    /// Microseconds since the start at which the step under way began; 0: none is.
    step: AtomicU64,
}

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds.
    pub fn add(&self, n: usize) {
        self.0.fetch_add(n as u64, Ordering::Relaxed);
    }

    /// Adds microseconds.
    pub fn add_time(&self, time: Duration) {
        self.0.fetch_add(micros(time), Ordering::Relaxed);
    }

    /// At least this.
    pub fn raise(&self, n: usize) {
        self.0.fetch_max(n as u64, Ordering::Relaxed);
    }

    /// The number.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A distribution of times.
#[derive(Debug)]
pub struct Histogram {
    counts: Mutex<Counts>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    /// By bucket; the last is of what is above all bounds.
    by_bucket: [u64; BOUNDS.len() + 1],
    sum: f64,
}

/// Upper bounds of buckets in seconds.
const BOUNDS: [f64; 16] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 60.0,
];

impl Histogram {
    fn new() -> Histogram {
        Histogram {
            counts: Mutex::default(),
        }
    }

    /// Counts a time.
    pub fn observe(&self, time: Duration) {
        let seconds = time.as_secs_f64();
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.by_bucket[BOUNDS.partition_point(|&bound| bound < seconds)] += 1;
        counts.sum += seconds;
    }

    /// As Prometheus reads it: upper bounds with the number of times up to each, the sum in seconds, and how many there are.
    pub fn cumulative(&self) -> (Vec<(f64, u64)>, f64, u64) {
        let counts = *self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let mut n = 0;
        let buckets = BOUNDS.iter().zip(counts.by_bucket).map(|(&bound, count)| {
            n += count;
            (bound, n)
        });
        let buckets = buckets.collect();
        (buckets, counts.sum, n + counts.by_bucket[BOUNDS.len()])
    }
}

/// How things stand.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Gauges {
    /// Sequences that are worked on.
    pub n_running: usize,
    /// Requests that wait.
    pub n_waiting: usize,
    /// Sequences that are kept for what they hold.
    pub n_kept: usize,
    /// Cells of the context in use, with those that are only kept.
    pub n_used: usize,
    /// Those of them that belong to sequences that are worked on: the others go when they are needed.
    pub n_busy: usize,
    /// Cells of the context.
    pub n_ctx: usize,
    /// True if cells limit what the context can hold.
    pub is_limited: bool,
}

impl Default for Metrics {
    fn default() -> Metrics {
        Metrics {
            n_prompt: Counter::default(),
            n_cached: Counter::default(),
            n_queried: Counter::default(),
            n_generated: Counter::default(),
            n_drafts: Counter::default(),
            n_right: Counter::default(),
            t_prompt: Counter::default(),
            t_decode: Counter::default(),
            n_decode: Counter::default(),
            n_decoded_sequences: Counter::default(),
            n_preempted: Counter::default(),
            n_tokens_max: Counter::default(),
            n_stopped: Counter::default(),
            n_limited: Counter::default(),
            n_abandoned: Counter::default(),
            to_first_token: Histogram::new(),
            between_tokens: Histogram::new(),
            queued: Histogram::new(),
            started: Instant::now(),
            step: AtomicU64::new(0),
        }
    }
}

impl Metrics {
    /// Counts tokens.
    pub fn generated(&self, n: usize) {
        self.n_generated.add(n);
    }

    /// Counts a continuation that is over.
    pub fn completed(&self, finish: &Finish) {
        match finish {
            Finish::Model(_) | Finish::Stop(_) => self.n_stopped.add(1),
            Finish::Limit | Finish::ContextFull => self.n_limited.add(1),
        }
    }

    /// A step begins.
    pub fn begin_step(&self) {
        let now = micros(self.started.elapsed()).max(1);
        self.step.store(now, Ordering::Relaxed);
    }

    /// There is nothing to do.
    pub fn rest(&self) {
        self.step.store(0, Ordering::Relaxed);
    }

    /// How long the step under way has taken so far; `None` if none is.
    pub fn step_age(&self) -> Option<Duration> {
        let begun = self.step.load(Ordering::Relaxed);
        (begun > 0).then(|| self.started.elapsed().saturating_sub(Duration::from_micros(begun)))
    }

    /// Since the start.
    pub fn uptime(&self) -> Duration {
        self.started.elapsed()
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_add_up() {
        let histogram = Histogram::new();
        for ms in [1, 2, 30, 1_000, 100_000] {
            histogram.observe(Duration::from_millis(ms));
        }
        let (buckets, sum, n) = histogram.cumulative();
        let up_to = |bound: f64| buckets.iter().find(|b| b.0 == bound).map(|b| b.1);
        assert_eq!(
            [up_to(0.001), up_to(0.0025), up_to(0.05), up_to(60.0)],
            [Some(1), Some(2), Some(3), Some(4)]
        );
        assert_eq!(n, 5);
        assert!((sum - 101.033).abs() < 1e-9, "{sum}");
    }
}
