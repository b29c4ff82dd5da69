//! Activations as unsigned integers of 8 bits with a scale and a minimum for each 32: what [`dots`](super::dots) multiplies.

use super::integers::{CHUNK, RUN, RUNS, spread};
use super::panels::SIGN;
use crate::simd::{IntSimd, Simd};

/// The largest integer.
const Q_MAX: f32 = 255.0;

/// [`CHUNK`] activations, each `scale * q + min`. What a row lacks at the end counts as zero in the last run and is not looked at beyond it.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct U8Chunk {
    /// Of each run. Not a number if one of its activations is not finite.
    pub scales: [f32; RUNS],
    pub mins: [f32; RUNS],
    /// Sums of what the integers stand for: of each run, then of the halves, `[half][run]`.
    pub sums: [[f32; RUNS]; 3],
    /// So that chunks are whole cache lines.
    pad: [f32; RUNS],
    pub values: [[u8; RUN]; RUNS],
}

const _: () = assert!(size_of::<U8Chunk>().is_multiple_of(64));

/// Bytes of a row of `k` activations.
pub(crate) const fn u8_row_bytes(k: usize) -> usize {
    spread(k.div_ceil(CHUNK) * size_of::<U8Chunk>())
}

/// Writes `k` activations as a row.
///
/// # Safety
/// The CPU has `V`'s instructions, `x` is valid for `k` floats and `out` for [`u8_row_bytes`].
#[inline(always)]
pub(crate) unsafe fn quantize_u8<V: IntSimd>(x: *const f32, k: usize, out: *mut u8) {
    for at in (0..k).step_by(CHUNK) {
        // SAFETY: the caller's promise; all accesses lie below `k`, those of `out` within the row.
        unsafe {
            let to = out.add(at / CHUNK * size_of::<U8Chunk>()).cast();
            if at + CHUNK <= k {
                quantize_chunk::<V>(x.add(at), to);
            } else {
                let mut rest = [0.0f32; CHUNK];
                x.add(at).copy_to_nonoverlapping(rest.as_mut_ptr(), k - at);
                quantize_chunk::<V>(rest.as_ptr(), to);
            }
        }
    }
}

/// Writes a chunk.
///
/// # Safety
/// As for [`quantize_u8`]: `x` is valid for [`CHUNK`] floats; `to` needs no alignment.
#[inline(always)]
unsafe fn quantize_chunk<V: IntSimd>(x: *const f32, to: *mut U8Chunk) {
    // SAFETY: the caller's promise; a lane for each run.
    unsafe {
        let [largest, smallest] = extremes::<V::Float>(x);
        // Half of it, as the range of finite numbers need not be finite.
        let half = V::Float::splat(0.5);
        let half_range = largest.mul(half).sub(smallest.mul(half));
        // Not below the smallest normal float, so that inverses are finite: what is rounded away then is of no account. What is no number stays so.
        let scale = half_range.div(V::Float::splat(Q_MAX / 2.0));
        let scale = V::Float::splat(f32::MIN_POSITIVE).max(scale);
        let inverse = V::Float::splat(2.0).div(scale);
        let mut of_runs = [[0.0f32; RUNS]; 2];
        inverse.store(of_runs[0].as_mut_ptr());
        smallest.mul(half).store(of_runs[1].as_mut_ptr());
        scale.store((&raw mut (*to).scales).cast());
        smallest.store((&raw mut (*to).mins).cast());
        let mut pairs = [V::splat(0); RUNS];
        for run in 0..RUNS {
            let values = (&raw mut (*to).values[run]).cast::<u8>();
            let inverse = V::Float::splat(of_runs[0][run]);
            let min = V::Float::splat(of_runs[1][run]);
            for i in (0..RUN).step_by(V::Float::LANES) {
                let q = V::Float::load(x.add(run * RUN + i)).mul(half).sub(min).mul(inverse);
                // In this order numbers that are none become integers, too.
                let q = q.round().max(V::Float::splat(0.0)).min(V::Float::splat(Q_MAX));
                // Written as signed bytes, then made unsigned.
                q.sub(V::Float::splat(f32::from(SIGN))).store_i8(values.add(i));
            }
            let q = V::load(values).xor(V::splat(SIGN));
            q.store(values);
            pairs[run] = q.multiply_bytes(V::splat(1));
        }
        set_sums::<V>(pairs, scale, smallest, to);
    }
}

/// The largest and the smallest of each run of a chunk. What is not finite makes both no numbers.
///
/// # Safety
/// As for [`quantize_chunk`].
#[inline(always)]
unsafe fn extremes<V: Simd>(x: *const f32) -> [V; 2] {
    const { assert!(V::LANES == RUNS) };
    // SAFETY: the caller's promise; the arrays are squares of lanes and runs.
    unsafe {
        let mut by_run = [[[0.0f32; RUNS]; RUNS]; 3];
        for run in 0..RUNS {
            let first = V::load(x.add(run * RUN));
            let (mut largest, mut smallest, mut zeros) = (first, first, first.mul(V::splat(0.0)));
            for i in (V::LANES..RUN).step_by(V::LANES) {
                let x = V::load(x.add(run * RUN + i));
                largest = x.max(largest);
                smallest = x.min(smallest);
                zeros = x.mul_add(V::splat(0.0), zeros);
            }
            largest.store(by_run[0][run].as_mut_ptr());
            smallest.store(by_run[1][run].as_mut_ptr());
            zeros.store(by_run[2][run].as_mut_ptr());
        }
        let mut by_lane = [[[0.0f32; RUNS]; RUNS]; 3];
        for i in 0..3 {
            V::transpose(
                by_run[i].as_flattened().as_ptr(),
                RUNS,
                by_lane[i].as_flattened_mut().as_mut_ptr(),
                RUNS,
            );
        }
        let [mut largest, mut smallest, mut zeros] = [V::splat(0.0); 3];
        for lane in 0..RUNS {
            let [a, b, c] = [0, 1, 2].map(|i| by_lane[i][lane].as_ptr());
            let (a, b, c) = (V::load(a), V::load(b), V::load(c));
            largest = if lane == 0 { a } else { a.max(largest) };
            smallest = if lane == 0 { b } else { b.min(smallest) };
            zeros = zeros.add(c);
        }
        [largest.add(zeros), smallest.add(zeros)]
    }
}

/// Sets the sums, given those of 16 neighbouring pairs of integers of each run.
///
/// # Safety
/// As for [`quantize_chunk`].
#[inline(always)]
unsafe fn set_sums<V: IntSimd>(pairs: [V; RUNS], scale: V::Float, min: V::Float, to: *mut U8Chunk) {
    // 8 registers of two pairs of each run: those of the first half, then those of the second.
    let pairs = V::transpose(pairs);
    // SAFETY: the caller's promise; a lane for each run.
    unsafe {
        let mins = min.mul(V::Float::splat((RUN / 2) as f32));
        let mut halves = [mins; 2];
        for (half, sum) in halves.iter_mut().enumerate() {
            let of_half = &pairs[4 * half..];
            let total = of_half[0].add16(of_half[1]).add16(of_half[2].add16(of_half[3]));
            let total = total.multiply_pairs(V::words(1)).to_floats();
            *sum = total.mul(scale).add(mins);
            sum.store((&raw mut (*to).sums[1 + half]).cast());
        }
        halves[0].add(halves[1]).store((&raw mut (*to).sums[0]).cast());
    }
}
