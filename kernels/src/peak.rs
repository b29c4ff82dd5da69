//! Loops at the peak rates of the machine, which benchmarks compare the other kernels with.

use std::hint::black_box;

use crate::matmul::multiply_tiles_in_cache;
use crate::prefetch::{CACHE_LINE, CacheLevel, prefetch};

/// Parallel read streams per thread, which are faster than a single one.
const STREAMS: usize = 4;

/// Prefetch distance of each stream in bytes.
const AHEAD: usize = 4096;

/// Sums the words at maximum read speed, with wrap-around.
pub fn read(words: &[u64]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: AVX2 was detected.
        return unsafe { sum_by_avx2(words) };
    }
    sum_of_streams(words)
}

/// [`read`] compiled for AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn sum_by_avx2(words: &[u64]) -> u64 {
    sum_of_streams(words)
}

/// Sums with independent accumulators, so that additions do not wait for each other.
#[inline(always)]
fn sum_of_streams(words: &[u64]) -> u64 {
    const LINE: usize = CACHE_LINE / size_of::<u64>();
    let (lines, rest) = words.as_chunks::<LINE>();
    let length = lines.len() / STREAMS;
    let mut sums = [[0u64; LINE]; STREAMS];
    for i in 0..length {
        for stream in 0..STREAMS {
            let line = &lines[stream * length + i];
            prefetch(line.as_ptr().wrapping_byte_add(AHEAD).cast(), CacheLevel::First);
            for (sum, word) in sums[stream].iter_mut().zip(line) {
                *sum = sum.wrapping_add(*word);
            }
        }
    }
    let left_over = lines[STREAMS * length..].as_flattened().iter().chain(rest);
    left_over.chain(sums.as_flattened()).fold(0, |a, &b| a.wrapping_add(b))
}

/// Multiplies and adds f32 in registers for `rounds` rounds. Returns the number of multiply-adds.
pub fn multiply_f32(rounds: usize) -> usize {
    #[cfg(target_arch = "x86_64")]
    if let Some(done) = registers::multiply_f32(rounds) {
        return done;
    }
    multiply_f32_portably(rounds)
}

/// Multiplies and adds 16-bit integers in registers for `rounds` rounds. Returns the number of multiply-adds, or
/// `None` without a suitable instruction.
pub fn multiply_i16(rounds: usize) -> Option<usize> {
    #[cfg(target_arch = "x86_64")]
    return registers::multiply_i16(rounds);
    #[cfg(not(target_arch = "x86_64"))]
    return None;
}

/// Multiplies and adds 8-bit integers in registers for `rounds` rounds, in sums of 16 bits, or of 32 bits with VNNI.
/// Returns the number of multiply-adds, or `None` without a suitable instruction.
pub fn multiply_i8(rounds: usize) -> Option<usize> {
    #[cfg(target_arch = "x86_64")]
    return registers::multiply_i8(rounds);
    #[cfg(not(target_arch = "x86_64"))]
    return None;
}

/// Multiplies bf16 tiles in the L1 cache for `rounds` rounds. Returns the number of multiply-adds, or `None` if this
/// CPU has no [bf16 kernels](crate::ActivationForm::Bf16Row).
pub fn multiply_bf16(rounds: usize) -> Option<usize> {
    multiply_tiles_in_cache(rounds)
}

/// Independent accumulators, which fit the registers of most CPUs.
const SUMS: usize = 32;

fn multiply_f32_portably(rounds: usize) -> usize {
    let (x, y) = (black_box(0.5f32), black_box(1.0f32));
    let mut sums = [y; SUMS];
    for _ in 0..rounds {
        sums.iter_mut().for_each(|sum| *sum = *sum * x + y);
    }
    black_box(sums);
    rounds * SUMS
}

#[cfg(target_arch = "x86_64")]
mod registers {
    use std::arch::x86_64::*;
    use std::hint::black_box;

    /// Independent dependency chains, enough to hide the latency of two execution units.
    const CHAINS: usize = 12;

    pub fn multiply_f32(rounds: usize) -> Option<usize> {
        let lanes = if is_x86_feature_detected!("avx512f") {
            // SAFETY: AVX-512F was detected.
            unsafe { fma_loop_of_512(rounds) };
            16
        } else if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            // SAFETY: AVX2 and FMA were detected.
            unsafe { fma_loop(rounds) };
            8
        } else {
            return None;
        };
        Some(rounds * CHAINS * lanes)
    }

    pub fn multiply_i16(rounds: usize) -> Option<usize> {
        let lanes = if has_vnni_of_512() {
            // SAFETY: AVX-512F and AVX-512 VNNI were detected.
            unsafe { dpwssd_loop_of_512(rounds) };
            32
        } else if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("avxvnni") {
            // SAFETY: AVX2 and AVX-VNNI were detected.
            unsafe { dpwssd_loop(rounds) };
            16
        } else if is_x86_feature_detected!("avx2") {
            // SAFETY: AVX2 was detected.
            unsafe { madd_loop(rounds) };
            16
        } else {
            return None;
        };
        Some(rounds * CHAINS * lanes)
    }

    pub fn multiply_i8(rounds: usize) -> Option<usize> {
        let lanes = if has_vnni_of_512() {
            // SAFETY: AVX-512F and AVX-512 VNNI were detected.
            unsafe { dpbusd_loop_of_512(rounds) };
            64
        } else if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("avxvnni") {
            // SAFETY: AVX2 and AVX-VNNI were detected.
            unsafe { dpbusd_loop(rounds) };
            32
        } else if is_x86_feature_detected!("avx2") {
            // SAFETY: AVX2 was detected.
            unsafe { maddubs_loop(rounds) };
            32
        } else {
            return None;
        };
        Some(rounds * CHAINS * lanes)
    }

    /// Returns true if the CPU supports 512-bit VNNI.
    fn has_vnni_of_512() -> bool {
        is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vnni")
    }

    #[target_feature(enable = "avx512f")]
    fn fma_loop_of_512(rounds: usize) {
        let (x, y) = (_mm512_set1_ps(black_box(0.5)), _mm512_set1_ps(black_box(1.0)));
        let mut sums = [y; CHAINS];
        for _ in 0..rounds {
            for sum in &mut sums {
                *sum = _mm512_fmadd_ps(*sum, x, y);
            }
        }
        black_box(sums);
    }

    #[target_feature(enable = "avx512f,avx512vnni")]
    fn dpwssd_loop_of_512(rounds: usize) {
        let x = _mm512_set1_epi16(black_box(3));
        let mut sums = [x; CHAINS];
        for _ in 0..rounds {
            for sum in &mut sums {
                *sum = _mm512_dpwssd_epi32(*sum, x, x);
            }
        }
        black_box(sums);
    }

    #[target_feature(enable = "avx512f,avx512vnni")]
    fn dpbusd_loop_of_512(rounds: usize) {
        let x = _mm512_set1_epi8(black_box(3));
        let mut sums = [x; CHAINS];
        for _ in 0..rounds {
            for sum in &mut sums {
                *sum = _mm512_dpbusd_epi32(*sum, x, x);
            }
        }
        black_box(sums);
    }

    #[target_feature(enable = "avx2,avxvnni")]
    fn dpwssd_loop(rounds: usize) {
        let x = _mm256_set1_epi16(black_box(3));
        let mut sums = [x; CHAINS];
        for _ in 0..rounds {
            for sum in &mut sums {
                *sum = _mm256_dpwssd_avx_epi32(*sum, x, x);
            }
        }
        black_box(sums);
    }

    #[target_feature(enable = "avx2,avxvnni")]
    fn dpbusd_loop(rounds: usize) {
        let x = _mm256_set1_epi8(black_box(3));
        let mut sums = [x; CHAINS];
        for _ in 0..rounds {
            for sum in &mut sums {
                *sum = _mm256_dpbusd_avx_epi32(*sum, x, x);
            }
        }
        black_box(sums);
    }

    #[target_feature(enable = "avx2,fma")]
    fn fma_loop(rounds: usize) {
        let (x, y) = (_mm256_set1_ps(black_box(0.5)), _mm256_set1_ps(black_box(1.0)));
        let mut sums = [y; CHAINS];
        for _ in 0..rounds {
            for sum in &mut sums {
                *sum = _mm256_fmadd_ps(*sum, x, y);
            }
        }
        black_box(sums);
    }

    #[target_feature(enable = "avx2")]
    fn madd_loop(rounds: usize) {
        let x = _mm256_set1_epi16(black_box(3));
        let mut sums = [x; CHAINS];
        for _ in 0..rounds {
            for sum in &mut sums {
                *sum = _mm256_madd_epi16(*sum, x);
            }
        }
        black_box(sums);
    }

    #[target_feature(enable = "avx2")]
    fn maddubs_loop(rounds: usize) {
        let x = _mm256_set1_epi8(black_box(3));
        let mut sums = [x; CHAINS];
        for _ in 0..rounds {
            for sum in &mut sums {
                *sum = _mm256_maddubs_epi16(*sum, x);
            }
        }
        black_box(sums);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn read_sums_every_word() {
        let words: Vec<u64> = (0..1000).collect();
        assert_eq!(read(&words), 499_500);
    }

    #[test]
    fn loops_return_number_of_multiply_adds() {
        for multiply in [|n| Some(multiply_f32(n)), multiply_i16, multiply_i8, multiply_bf16] {
            let (Some(one), Some(three)) = (multiply(1), multiply(3)) else {
                continue;
            };
            assert!(one > 0 && three == 3 * one, "{one} and {three}");
        }
        assert_eq!(multiply_f32_portably(3), 3 * SUMS);
    }
}
