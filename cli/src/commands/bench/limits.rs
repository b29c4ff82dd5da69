//! Measures peak memory bandwidth and multiply-add rates with the number of threads of a test.

use std::hint::black_box;
use std::sync::Barrier;
use std::time::Instant;

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

/// Repetitions of each measurement; the fastest counts, since slower ones were disturbed by other processes.
const PASSES: usize = 8;

impl Limits {
    /// Measures all rates in about half a second.
    pub fn measure(n_threads: usize) -> Limits {
        Limits {
            read: read_limit(n_threads),
            f32: arithmetic::f32_limit(n_threads),
            i16: arithmetic::i16_limit(n_threads),
            i8: arithmetic::i8_limit(n_threads),
            bf16: bf16_limit(n_threads),
        }
    }

    /// Returns the median of each rate; 0 without measurements.
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
    // Untouched zero pages would all map to the same physical page.
    let buffer = vec![1u64; BUFFER / size_of::<u64>()];
    let part = buffer.len().div_ceil(n_threads.max(1));
    let seconds = best_time(n_threads, |thread| {
        let from = (thread * part).min(buffer.len());
        let to = (from + part).min(buffer.len());
        black_box(sum(black_box(&buffer[from..to])));
    });
    BUFFER as f64 / seconds
}

/// Iterations of the tile loop, which take 1 to 20 milliseconds.
const TILE_ROUNDS: usize = 1 << 12;

fn bf16_limit(n_threads: usize) -> Option<f64> {
    let done = kernels::multiply_tiles_in_cache(1)?;
    let seconds = best_time(n_threads, |_| {
        kernels::multiply_tiles_in_cache(TILE_ROUNDS);
    });
    Some((n_threads * TILE_ROUNDS * done) as f64 / seconds)
}

/// Parallel read streams per thread, which are faster than a single one.
const STREAMS: usize = 4;

/// Prefetch distance of each stream in bytes.
const AHEAD: usize = 4096;

/// Sums the words at maximum read speed.
fn sum(words: &[u64]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: AVX2 was detected.
        return unsafe { sum_by_avx2(words) };
    }
    sum_of_streams(words)
}

/// [`sum`] compiled for AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn sum_by_avx2(words: &[u64]) -> u64 {
    sum_of_streams(words)
}

/// Sums with independent accumulators, so that additions do not wait for each other.
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

/// Iterations of the arithmetic loop, which take a few milliseconds.
const ROUNDS: usize = 1 << 21;

#[cfg(target_arch = "x86_64")]
mod arithmetic {
    use std::arch::x86_64::*;

    use super::*;

    /// Independent dependency chains, enough to hide the latency of two execution units.
    const CHAINS: usize = 12;

    pub fn f32_limit(n_threads: usize) -> f64 {
        if !is_x86_feature_detected!("avx2") || !is_x86_feature_detected!("fma") {
            return portable::f32_limit(n_threads);
        }
        if is_x86_feature_detected!("avx512f") {
            // SAFETY: AVX-512F was detected.
            let seconds = best_time(n_threads, |_| unsafe { fma_loop_of_512() });
            return (n_threads * ROUNDS * CHAINS * 16) as f64 / seconds;
        }
        // SAFETY: AVX2 and FMA were detected at the start of the function.
        let seconds = best_time(n_threads, |_| unsafe { fma_loop() });
        (n_threads * ROUNDS * CHAINS * 8) as f64 / seconds
    }

    pub fn i16_limit(n_threads: usize) -> Option<f64> {
        if !is_x86_feature_detected!("avx2") {
            return None;
        }
        if has_vnni_of_512() {
            // SAFETY: AVX-512F and AVX-512 VNNI were detected.
            let seconds = best_time(n_threads, |_| unsafe { dpwssd_loop_of_512() });
            return Some((n_threads * ROUNDS * CHAINS * 32) as f64 / seconds);
        }
        if is_x86_feature_detected!("avxvnni") {
            // SAFETY: AVX-VNNI was detected.
            let seconds = best_time(n_threads, |_| unsafe { dpwssd_loop() });
            return Some((n_threads * ROUNDS * CHAINS * 16) as f64 / seconds);
        }
        // SAFETY: AVX2 was detected at the start of the function.
        let seconds = best_time(n_threads, |_| unsafe { madd_loop() });
        Some((n_threads * ROUNDS * CHAINS * 16) as f64 / seconds)
    }

    pub fn i8_limit(n_threads: usize) -> Option<f64> {
        if !is_x86_feature_detected!("avx2") {
            return None;
        }
        if has_vnni_of_512() {
            // SAFETY: AVX-512F and AVX-512 VNNI were detected.
            let seconds = best_time(n_threads, |_| unsafe { dpbusd_loop_of_512() });
            return Some((n_threads * ROUNDS * CHAINS * 64) as f64 / seconds);
        }
        if is_x86_feature_detected!("avxvnni") {
            // SAFETY: AVX-VNNI was detected.
            let seconds = best_time(n_threads, |_| unsafe { dpbusd_loop() });
            return Some((n_threads * ROUNDS * CHAINS * 32) as f64 / seconds);
        }
        // SAFETY: AVX2 was detected at the start of the function.
        let seconds = best_time(n_threads, |_| unsafe { maddubs_loop() });
        Some((n_threads * ROUNDS * CHAINS * 32) as f64 / seconds)
    }

    /// Returns true if the CPU supports 512-bit VNNI.
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

#[cfg_attr(target_arch = "x86_64", allow(dead_code, reason = "fallback for CPUs without AVX2"))]
mod portable {
    use super::*;

    /// Independent accumulators, which fit the registers of most CPUs.
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
    fn sum_includes_every_word() {
        let words: Vec<u64> = (0..1000).collect();
        assert_eq!(sum(&words), 499_500);
    }

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
    fn limits_are_plausible() {
        let limits = Limits::measure(2);
        assert!((1e8..1e13).contains(&limits.read), "{limits:?}");
        assert!((1e8..1e13).contains(&limits.f32), "{limits:?}");
        assert!(limits.i16.is_none_or(|n| (1e8..1e13).contains(&n)), "{limits:?}");
        assert!(limits.i8.is_none_or(|n| (1e8..1e13).contains(&n)), "{limits:?}");
        assert!(limits.bf16.is_none_or(|n| (1e9..1e14).contains(&n)), "{limits:?}");
    }
}
