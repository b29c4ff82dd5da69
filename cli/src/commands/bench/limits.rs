//! What the machine does at most, measured by the same number of threads as the tests: reading memory, and multiplying and adding.

use std::hint::black_box;
use std::sync::Barrier;
use std::time::Instant;

use super::samples::median;

/// Limits of so many threads, each in units per second.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes read from memory.
    pub read: f64,
    /// Multiply-adds of f32.
    pub f32: f64,
    /// Multiply-adds of 16-bit integers; `None` where there is no instruction for them.
    pub i16: Option<f64>,
    /// Multiply-adds of 8-bit integers, those of neighbours added to integers of 16 bits, or of 32 with VNNI; `None` as above.
    pub i8: Option<f64>,
    /// Multiply-adds of bfloat16 in tiles; `None` where there is no unit for them.
    pub bf16: Option<f64>,
}

/// Larger than any cache near a core.
const BUFFER: usize = 256 << 20;

/// Passes over the buffer, and runs of a loop of arithmetic. The best one counts: others are a neighbour's.
const PASSES: usize = 8;

impl Limits {
    /// Measures for about half a second.
    pub fn measure(n_threads: usize) -> Limits {
        Limits {
            read: read_limit(n_threads),
            f32: arithmetic::f32_limit(n_threads),
            i16: arithmetic::i16_limit(n_threads),
            i8: arithmetic::i8_limit(n_threads),
            bf16: bf16_limit(n_threads),
        }
    }

    /// The median of each limit, measured several times. Those of no measurement are zeros.
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

fn read_limit(n_threads: usize) -> f64 {
    // Not zeros: those would all be one page.
    let buffer = vec![1u64; BUFFER / size_of::<u64>()];
    let part = buffer.len().div_ceil(n_threads.max(1));
    let seconds = best_time(n_threads, |thread| {
        let from = (thread * part).min(buffer.len());
        let to = (from + part).min(buffer.len());
        black_box(sum(black_box(&buffer[from..to])));
    });
    BUFFER as f64 / seconds
}

/// Rounds of multiplying tiles: some milliseconds.
const TILE_ROUNDS: usize = 1 << 14;

fn bf16_limit(n_threads: usize) -> Option<f64> {
    let done = kernels::multiply_tiles_in_cache(1)?;
    let seconds = best_time(n_threads, |_| {
        kernels::multiply_tiles_in_cache(TILE_ROUNDS);
    });
    Some((n_threads * TILE_ROUNDS * done) as f64 / seconds)
}

/// Parts of a thread's memory that are read in turn: memory gives several streams faster than one.
const STREAMS: usize = 4;

/// Bytes by which each stream is fetched ahead.
const AHEAD: usize = 4096;

/// The sum of words, read as fast as can be.
fn sum(words: &[u64]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the CPU has the instructions.
        return unsafe { sum_by_avx2(words) };
    }
    sum_of_streams(words)
}

/// [`sum`] with wider registers.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn sum_by_avx2(words: &[u64]) -> u64 {
    sum_of_streams(words)
}

/// Several sums, so that none waits for another.
#[inline(always)]
fn sum_of_streams(words: &[u64]) -> u64 {
    const LINE: usize = kernels::CACHE_LINE / size_of::<u64>();
    let (lines, rest) = words.as_chunks::<LINE>();
    let length = lines.len() / STREAMS;
    let mut sums = [[0u64; LINE]; STREAMS];
    for i in 0..length {
        for stream in 0..STREAMS {
            let line = &lines[stream * length + i];
            kernels::prefetch(
                line.as_ptr().wrapping_byte_add(AHEAD).cast(),
                kernels::CacheLevel::First,
            );
            for (sum, word) in sums[stream].iter_mut().zip(line) {
                *sum = sum.wrapping_add(*word);
            }
        }
    }
    let left_over = lines[STREAMS * length..].as_flattened().iter().chain(rest);
    left_over.chain(sums.as_flattened()).fold(0, |a, &b| a.wrapping_add(b))
}

/// The shortest time that all threads together take for their parts, given by their numbers.
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

/// Multiply-adds of one loop of one thread: some milliseconds.
const ROUNDS: usize = 1 << 21;

#[cfg(target_arch = "x86_64")]
mod arithmetic {
    use std::arch::x86_64::*;

    use super::*;

    /// Independent chains: as many as hide the latency of two units.
    const CHAINS: usize = 12;

    pub fn f32_limit(n_threads: usize) -> f64 {
        if !is_x86_feature_detected!("avx2") || !is_x86_feature_detected!("fma") {
            return portable::f32_limit(n_threads);
        }
        if is_x86_feature_detected!("avx512f") {
            // SAFETY: the CPU has these instructions.
            let seconds = best_time(n_threads, |_| unsafe { fma_loop_of_512() });
            return (n_threads * ROUNDS * CHAINS * 16) as f64 / seconds;
        }
        // SAFETY: the CPU has these instructions.
        let seconds = best_time(n_threads, |_| unsafe { fma_loop() });
        (n_threads * ROUNDS * CHAINS * 8) as f64 / seconds
    }

    pub fn i16_limit(n_threads: usize) -> Option<f64> {
        if !is_x86_feature_detected!("avx2") {
            return None;
        }
        if has_vnni_of_512() {
            // SAFETY: the CPU has these instructions.
            let seconds = best_time(n_threads, |_| unsafe { dpwssd_loop_of_512() });
            return Some((n_threads * ROUNDS * CHAINS * 32) as f64 / seconds);
        }
        if is_x86_feature_detected!("avxvnni") {
            // SAFETY: the CPU has these instructions.
            let seconds = best_time(n_threads, |_| unsafe { dpwssd_loop() });
            return Some((n_threads * ROUNDS * CHAINS * 16) as f64 / seconds);
        }
        // SAFETY: the CPU has these instructions.
        let seconds = best_time(n_threads, |_| unsafe { madd_loop() });
        Some((n_threads * ROUNDS * CHAINS * 16) as f64 / seconds)
    }

    pub fn i8_limit(n_threads: usize) -> Option<f64> {
        if !is_x86_feature_detected!("avx2") {
            return None;
        }
        if has_vnni_of_512() {
            // SAFETY: the CPU has these instructions.
            let seconds = best_time(n_threads, |_| unsafe { dpbusd_loop_of_512() });
            return Some((n_threads * ROUNDS * CHAINS * 64) as f64 / seconds);
        }
        if is_x86_feature_detected!("avxvnni") {
            // SAFETY: the CPU has these instructions.
            let seconds = best_time(n_threads, |_| unsafe { dpbusd_loop() });
            return Some((n_threads * ROUNDS * CHAINS * 32) as f64 / seconds);
        }
        // SAFETY: the CPU has these instructions.
        let seconds = best_time(n_threads, |_| unsafe { maddubs_loop() });
        Some((n_threads * ROUNDS * CHAINS * 32) as f64 / seconds)
    }

    /// Whether the CPU adds up products of integers in registers of 512 bits.
    fn has_vnni_of_512() -> bool {
        is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vnni")
    }

    #[target_feature(enable = "avx512f")]
    fn fma_loop_of_512() {
        let (x, y) = (_mm512_set1_ps(black_box(0.5)), _mm512_set1_ps(black_box(1.0)));
        let mut sums = [y; CHAINS];
        for _ in 0..ROUNDS {
            for sum in &mut sums {
                *sum = _mm512_fmadd_ps(*sum, x, y);
            }
        }
        black_box(sums);
    }

    #[target_feature(enable = "avx512f,avx512vnni")]
    fn dpwssd_loop_of_512() {
        let x = _mm512_set1_epi16(black_box(3));
        let mut sums = [x; CHAINS];
        for _ in 0..ROUNDS {
            for sum in &mut sums {
                *sum = _mm512_dpwssd_epi32(*sum, x, x);
            }
        }
        black_box(sums);
    }

    #[target_feature(enable = "avx512f,avx512vnni")]
    fn dpbusd_loop_of_512() {
        let x = _mm512_set1_epi8(black_box(3));
        let mut sums = [x; CHAINS];
        for _ in 0..ROUNDS {
            for sum in &mut sums {
                *sum = _mm512_dpbusd_epi32(*sum, x, x);
            }
        }
        black_box(sums);
    }

    #[target_feature(enable = "avx2,avxvnni")]
    fn dpwssd_loop() {
        let x = _mm256_set1_epi16(black_box(3));
        let mut sums = [x; CHAINS];
        for _ in 0..ROUNDS {
            for sum in &mut sums {
                *sum = _mm256_dpwssd_avx_epi32(*sum, x, x);
            }
        }
        black_box(sums);
    }

    #[target_feature(enable = "avx2,avxvnni")]
    fn dpbusd_loop() {
        let x = _mm256_set1_epi8(black_box(3));
        let mut sums = [x; CHAINS];
        for _ in 0..ROUNDS {
            for sum in &mut sums {
                *sum = _mm256_dpbusd_avx_epi32(*sum, x, x);
            }
        }
        black_box(sums);
    }

    #[target_feature(enable = "avx2,fma")]
    fn fma_loop() {
        let (x, y) = (_mm256_set1_ps(black_box(0.5)), _mm256_set1_ps(black_box(1.0)));
        let mut sums = [y; CHAINS];
        for _ in 0..ROUNDS {
            for sum in &mut sums {
                *sum = _mm256_fmadd_ps(*sum, x, y);
            }
        }
        black_box(sums);
    }

    #[target_feature(enable = "avx2")]
    fn madd_loop() {
        let x = _mm256_set1_epi16(black_box(3));
        let mut sums = [x; CHAINS];
        for _ in 0..ROUNDS {
            for sum in &mut sums {
                *sum = _mm256_madd_epi16(*sum, x);
            }
        }
        black_box(sums);
    }

    #[target_feature(enable = "avx2")]
    fn maddubs_loop() {
        let x = _mm256_set1_epi8(black_box(3));
        let mut sums = [x; CHAINS];
        for _ in 0..ROUNDS {
            for sum in &mut sums {
                *sum = _mm256_maddubs_epi16(*sum, x);
            }
        }
        black_box(sums);
    }
}

#[cfg(not(target_arch = "x86_64"))]
use portable as arithmetic;

#[cfg_attr(target_arch = "x86_64", allow(dead_code, reason = "for CPUs without AVX2"))]
mod portable {
    use super::*;

    /// As many independent sums as registers hold on most CPUs.
    const SUMS: usize = 32;

    pub fn f32_limit(n_threads: usize) -> f64 {
        let seconds = best_time(n_threads, |_| {
            let (x, y) = (black_box(0.5f32), black_box(1.0f32));
            let mut sums = [y; SUMS];
            for _ in 0..ROUNDS {
                sums.iter_mut().for_each(|sum| *sum = *sum * x + y);
            }
            black_box(sums);
        });
        (n_threads * ROUNDS * SUMS) as f64 / seconds
    }

    pub fn i16_limit(_n_threads: usize) -> Option<f64> {
        None
    }

    pub fn i8_limit(_n_threads: usize) -> Option<f64> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_hold_every_word() {
        let words: Vec<u64> = (0..1000).collect();
        assert_eq!(sum(&words), 499_500);
    }

    #[test]
    fn each_limit_has_a_median_of_its_own() {
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
    fn limits_are_of_a_plausible_size() {
        let limits = Limits::measure(2);
        assert!((1e8..1e13).contains(&limits.read), "{limits:?}");
        assert!((1e8..1e13).contains(&limits.f32), "{limits:?}");
        assert!(limits.i16.is_none_or(|n| (1e8..1e13).contains(&n)), "{limits:?}");
        assert!(limits.i8.is_none_or(|n| (1e8..1e13).contains(&n)), "{limits:?}");
        assert!(limits.bf16.is_none_or(|n| (1e9..1e14).contains(&n)), "{limits:?}");
    }
}
