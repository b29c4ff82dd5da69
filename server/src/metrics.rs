//! Counters and histograms of the scheduler.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Counters and histograms since the start of the server. Gauges are in [`Gauges`].
#[derive(Debug)]
pub struct Metrics {
    /// Number of prompt tokens computed.
    pub n_prompt: Counter,
    /// Number of prompt tokens found in the cache.
    pub n_cached: Counter,
    /// Number of prompt tokens of all started requests.
    pub n_queried: Counter,
    /// Generated tokens.
    pub n_generated: Counter,
    /// Number of drafted tokens that were verified.
    pub n_drafts: Counter,
    /// Number of drafted tokens that were accepted.
    pub n_right: Counter,
    /// Number of sequences of drafted tokens that were verified.
    pub n_draft_sequences: Counter,
    /// Time of steps that include prefill, in microseconds.
    pub t_prompt: Counter,
    /// Time of decode-only steps, in microseconds.
    pub t_decode: Counter,
    /// Number of calls of `decode`.
    pub n_decode: Counter,
    /// Sequences in decode-only steps, summed over the steps.
    pub n_decoded_sequences: Counter,
    /// Preempted sequences.
    pub n_preempted: Counter,
    /// Maximum number of tokens in a sequence.
    pub n_tokens_max: Counter,
    /// Completions that ended with an end-of-sequence token or a stop string.
    pub n_stopped: Counter,
    /// Completions that ended at a token limit or a full context.
    pub n_limited: Counter,
    /// Number of encoded images and audio files.
    pub n_media_encoded: Counter,
    /// Number of images and audio files found in the cache.
    pub n_media_cached: Counter,
    /// Time spent encoding media, in microseconds.
    pub t_media: Counter,
    /// Number of requests whose client disconnected before the end.
    pub n_abandoned: Counter,
    /// Time from the request to its first token.
    pub to_first_token: Histogram,
    /// Time between consecutive tokens of a completion.
    pub between_tokens: Histogram,
    /// Time from the request to the start of prefill.
    pub queued: Histogram,
    /// Counters at the last scrape.
    scraped: Mutex<Scraped>,
    started: Instant,
    /// Start of the running step in microseconds since `started`; 0 if the scheduler is idle.
    step: AtomicU64,
}

/// Numbers of tokens, and times in microseconds.
#[derive(Clone, Copy, Debug, Default)]
struct Scraped {
    n_prompt: u64,
    t_prompt: u64,
    n_generated: u64,
    t_decode: u64,
}

/// Tokens per second between two scrapes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rates {
    /// Prompt tokens per second of steps that include prefill.
    pub prompt: f64,
    /// Generated tokens per second of steps without prefill.
    pub generated: f64,
}

/// Monotonic counter.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`.
    pub fn add(&self, n: usize) {
        self.0.fetch_add(n as u64, Ordering::Relaxed);
    }

    /// Adds a duration in microseconds.
    pub fn add_time(&self, time: Duration) {
        self.0.fetch_add(micros(time), Ordering::Relaxed);
    }

    /// Raises the counter to at least `n`.
    pub fn raise(&self, n: usize) {
        self.0.fetch_max(n as u64, Ordering::Relaxed);
    }

    /// Returns the value of the counter.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Histogram of durations.
#[derive(Debug)]
pub struct Histogram {
    counts: Mutex<Counts>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    /// Counts by bucket; the last bucket is unbounded.
    by_bucket: [u64; BOUNDS.len() + 1],
    sum: f64,
}

/// Upper bounds of the buckets in seconds.
const BOUNDS: [f64; 16] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 60.0,
];

impl Histogram {
    fn new() -> Histogram {
        Histogram {
            counts: Mutex::default(),
        }
    }

    /// Records a duration in the histogram.
    pub fn observe(&self, time: Duration) {
        let seconds = time.as_secs_f64();
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.by_bucket[BOUNDS.partition_point(|&bound| bound < seconds)] += 1;
        counts.sum += seconds;
    }

    /// Returns the histogram as Prometheus expects it: upper bounds with cumulative counts, the sum in
    /// seconds, and the total count.
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

/// Current state of the scheduler.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Gauges {
    /// Number of sequences in prefill or decode.
    pub n_running: usize,
    /// Queued requests.
    pub n_waiting: usize,
    /// Number of idle sequences in the prefix cache.
    pub n_kept: usize,
    /// KV cache cells in use, including cached sequences.
    pub n_used: usize,
    /// KV cache cells of running sequences; the other used cells can be evicted.
    pub n_busy: usize,
    /// Number of KV cache cells in the context.
    pub n_ctx: usize,
    /// True if the number of cells limits the context.
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
            n_draft_sequences: Counter::default(),
            t_prompt: Counter::default(),
            t_decode: Counter::default(),
            n_decode: Counter::default(),
            n_decoded_sequences: Counter::default(),
            n_preempted: Counter::default(),
            n_tokens_max: Counter::default(),
            n_stopped: Counter::default(),
            n_limited: Counter::default(),
            n_media_encoded: Counter::default(),
            n_media_cached: Counter::default(),
            t_media: Counter::default(),
            n_abandoned: Counter::default(),
            to_first_token: Histogram::new(),
            between_tokens: Histogram::new(),
            queued: Histogram::new(),
            scraped: Mutex::default(),
            started: Instant::now(),
            step: AtomicU64::new(0),
        }
    }
}

impl Metrics {
    /// Returns the start of the counters in seconds since the Unix epoch.
    pub fn start_time(&self) -> u64 {
        let start = SystemTime::now().checked_sub(self.started.elapsed());
        let since = start.and_then(|start| start.duration_since(UNIX_EPOCH).ok());
        since.unwrap_or_default().as_secs()
    }

    /// Returns the rates since the last call, which a scrape makes.
    pub fn rates(&self) -> Rates {
        let now = Scraped {
            n_prompt: self.n_prompt.get(),
            t_prompt: self.t_prompt.get(),
            n_generated: self.n_generated.get(),
            t_decode: self.t_decode.get(),
        };
        let mut scraped = self.scraped.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *scraped, now);
        let rate = |n: u64, micros: u64| {
            if micros == 0 {
                0.0
            } else {
                n as f64 / micros as f64 * 1e6
            }
        };
        Rates {
            prompt: rate(now.n_prompt - before.n_prompt, now.t_prompt - before.t_prompt),
            generated: rate(now.n_generated - before.n_generated, now.t_decode - before.t_decode),
        }
    }

    /// Marks the start of a scheduler step.
    pub fn begin_step(&self) {
        let now = micros(self.started.elapsed()).max(1);
        self.step.store(now, Ordering::Relaxed);
    }

    /// Marks the scheduler as idle.
    pub fn rest(&self) {
        self.step.store(0, Ordering::Relaxed);
    }

    /// Returns the time since the running step started; `None` if the scheduler is idle.
    pub fn step_age(&self) -> Option<Duration> {
        let started_at = self.step.load(Ordering::Relaxed);
        if started_at == 0 {
            return None;
        }
        Some(self.started.elapsed().saturating_sub(Duration::from_micros(started_at)))
    }

    /// Returns the time since the start of the server.
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
    fn rates_restart_at_each_scrape() {
        let metrics = Metrics::default();
        assert_eq!(metrics.rates(), Rates::default());
        metrics.n_prompt.add(30);
        metrics.t_prompt.add_time(Duration::from_millis(500));
        metrics.n_generated.add(8);
        metrics.t_decode.add_time(Duration::from_secs(2));
        assert_eq!(
            metrics.rates(),
            Rates {
                prompt: 60.0,
                generated: 4.0
            }
        );
        assert_eq!(metrics.rates(), Rates::default());
        metrics.n_generated.add(3);
        metrics.t_decode.add_time(Duration::from_millis(250));
        assert_eq!(metrics.rates().generated, 12.0);
    }

    #[test]
    fn histogram_buckets_are_cumulative() {
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
