//! Measures peak memory bandwidth and multiply-add rates with the number of threads of a test.

use std::hint::black_box;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use kernels::peak;

use super::samples::median;

/// Peak rates per second of a number of threads.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes read from memory per second.
    pub read: f64,
    /// Multiply-adds of f32 per second.
    pub f32: f64,
    /// Multiply-adds of 16-bit integers; `None` without a suitable instruction.
    pub i16: Option<f64>,
    /// Multiply-adds of 8-bit integers, accumulated in 16 bits, or in 32 bits with VNNI; `None` without a
    /// suitable instruction.
    pub i8: Option<f64>,
    /// Multiply-adds of bf16; `None` without AMX or fast bf16 dot products.
    pub bf16: Option<f64>,
}

/// Buffer size in bytes, larger than any per-core cache.
const BUFFER: usize = 256 << 20;

/// Smallest size of the buffer in bytes that the free memory determines.
const MIN_BUFFER: usize = 16 << 20;

/// Repetitions of each measurement; the fastest counts, since slower ones were disturbed by other processes.
const PASSES: usize = 8;

impl Limits {
    /// Measures all rates in about half a second. `free` is the free memory in bytes; 0 if unknown.
    pub fn measure(n_threads: usize, free: usize) -> Limits {
        Limits {
            read: read_limit(n_threads, free),
            f32: arithmetic_limit(n_threads, ROUNDS, |rounds| Some(peak::multiply_f32(rounds))).unwrap_or_default(),
            i16: arithmetic_limit(n_threads, ROUNDS, peak::multiply_i16),
            i8: arithmetic_limit(n_threads, ROUNDS, peak::multiply_i8),
            bf16: arithmetic_limit(n_threads, TILE_ROUNDS, peak::multiply_bf16),
        }
    }

    /// Returns the median of each rate, or 0 if there are no measurements.
    pub fn median(measured: &[Limits]) -> Limits {
        let of = |limit: fn(&Limits) -> Option<f64>| median(&measured.iter().filter_map(limit).collect::<Vec<_>>());
        Limits {
            read: of(|limits| Some(limits.read)).unwrap_or_default(),
            f32: of(|limits| Some(limits.f32)).unwrap_or_default(),
            i16: of(|limits| limits.i16),
            i8: of(|limits| limits.i8),
            bf16: of(|limits| limits.bf16),
        }
    }
}

fn read_limit(n_threads: usize, free: usize) -> f64 {
    let buffer = buffer(buffer_size(free));
    let part = buffer.len().div_ceil(n_threads.max(1));
    let seconds = best_time(n_threads, |thread| {
        let from = (thread * part).min(buffer.len());
        let to = (from + part).min(buffer.len());
        black_box(peak::read(black_box(&buffer[from..to])));
    });
    size_of_val(buffer.as_slice()) as f64 / seconds
}

/// Returns the buffer size in bytes: at most a quarter of the free memory.
fn buffer_size(free: usize) -> usize {
    let mut n_bytes = BUFFER;
    while free > 0 && n_bytes > (free / 4).max(MIN_BUFFER) {
        n_bytes /= 2;
    }
    n_bytes
}

/// Allocates a buffer of `n_bytes`, or less if a limit of the process prevents it.
fn buffer(mut n_bytes: usize) -> Vec<u64> {
    let mut buffer = Vec::new();
    while buffer.try_reserve_exact(n_bytes / size_of::<u64>()).is_err() {
        n_bytes /= 2;
    }
    // Untouched zero pages would all map to the same physical page.
    buffer.resize(n_bytes / size_of::<u64>(), 1);
    buffer
}

/// Iterations of the loops in registers, which take a few milliseconds.
const ROUNDS: usize = 1 << 21;

/// Iterations of the tile loop, which take 1 to 20 milliseconds.
const TILE_ROUNDS: usize = 1 << 12;

/// Returns the multiply-adds per second of `multiply`, which runs a number of rounds and returns its number of
/// multiply-adds.
fn arithmetic_limit(n_threads: usize, rounds: usize, multiply: fn(usize) -> Option<usize>) -> Option<f64> {
    multiply(1)?;
    let done = AtomicUsize::new(0);
    let seconds = best_time(n_threads, |_| {
        done.store(multiply(rounds).unwrap_or_default(), Ordering::Relaxed);
    });
    Some((n_threads * done.into_inner()) as f64 / seconds)
}

/// Returns the shortest time in seconds until all threads finish `work(thread)`.
fn best_time(n_threads: usize, work: impl Fn(usize) + Sync) -> f64 {
    let barrier = Barrier::new(n_threads.max(1));
    let passes = |thread: usize| {
        let mut best = f64::INFINITY;
        for _ in 0..PASSES {
            barrier.wait();
            let start = Instant::now();
            work(thread);
            barrier.wait();
            best = best.min(start.elapsed().as_secs_f64());
        }
        best
    };
    std::thread::scope(|scope| {
        let passes = &passes;
        let others: Vec<_> = (1..n_threads)
            .map(|thread| scope.spawn(move || passes(thread)))
            .collect();
        let best = passes(0);
        others.into_iter().for_each(|other| drop(other.join()));
        best
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_have_separate_medians() {
        let limits = |read, f32, i8| Limits {
            read,
            f32,
            i16: None,
            i8: Some(i8),
            bf16: None,
        };
        let found = Limits::median(&[limits(1.0, 9.0, 4.0), limits(3.0, 7.0, 5.0), limits(2.0, 8.0, 6.0)]);
        assert_eq!(
            (found.read, found.f32, found.i8, found.i16),
            (2.0, 8.0, Some(5.0), None)
        );
    }

    #[test]
    fn buffer_takes_at_most_a_quarter_of_free_memory() {
        let sizes = [0, 8 << 30, 1 << 30, 1 << 29, 100 << 20, 1].map(buffer_size);
        assert_eq!(sizes.map(|n| n >> 20), [256, 256, 256, 128, 16, 16]);
    }

    #[test]
    fn limits_are_plausible() {
        let limits = Limits::measure(2, 0);
        assert!((1e8..1e13).contains(&limits.read), "{limits:?}");
        assert!((1e8..1e13).contains(&limits.f32), "{limits:?}");
        assert!(limits.i16.is_none_or(|n| (1e8..1e13).contains(&n)), "{limits:?}");
        assert!(limits.i8.is_none_or(|n| (1e8..1e13).contains(&n)), "{limits:?}");
        assert!(limits.bf16.is_none_or(|n| (1e9..1e14).contains(&n)), "{limits:?}");
    }
}
