//! Activations quantized to 8 bits, with outliers stored as floats; the right operand of
//! [`gemm_u8`](super::gemm_u8).
//!
//! In language models a few activations are much larger than the rest. Storing the largest [`N_OUTLIERS`] of
//! each chunk of 256 as floats lets one scale serve the whole chunk. The inner loop of the matmul then needs
//! no scale of `x`, and the other activations keep more bits than with a scale per 32.
//!
//! ```text
//! quantize(chunk):
//!     outliers  = the 4 elements of largest magnitude         # vectorized selection, see top_magnitudes
//!     scale     = (5th largest magnitude) / 127
//!     q         = round(x / scale) + 128                      # outliers: 128, which represents 0
//!     odd runs:   q = 256 - q, outlier = -outlier             # sign alternates, see sign_of
//!     sums      = sums of (q - 128) per run and half run
//! ```
//!
//! Layout of a chunk ([`U8Chunk`]):
//!
//! ```text
//! | scale | outliers[4] | outlier_index[4] | sums[3][8] | values[8 runs][32] |
//! ```

use super::integers::spread;
use crate::layout::runs::{CHUNK, RUN, RUNS};
use crate::simd::{IntSimd, Simd};

/// Activations of a chunk that are stored as floats.
pub(crate) const N_OUTLIERS: usize = 4;

/// Unsigned byte that represents 0.
pub(crate) const ZERO_POINT: u8 = 128;

/// Largest distance of an integer from [`ZERO_POINT`].
const Q_MAX: f32 = 127.0;

/// Smallest scale relative to the largest activation. Rounding by this amount does not change an f32 sum that
/// contains that activation.
const MIN_RELATIVE_SCALE: f32 = 1.0 / (1u64 << 40) as f32;

/// A chunk of [`CHUNK`] activations.
///
/// An activation is `scale * (q - ZERO_POINT)`, or `scale * outlier` at the indices of outliers. Runs with an
/// odd number store the negated activations; see [`sign_of`]. Elements beyond the end of a row are zero
/// within its last run and never read after that run.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct U8Chunk {
    /// Scale of the chunk: 0 if all activations are 0, NaN if an activation is not finite.
    pub scale: f32,
    /// Outliers divided by the scale, with the signs of their runs. Their integers are [`ZERO_POINT`].
    pub outliers: [f32; N_OUTLIERS],
    pub outlier_index: [u16; N_OUTLIERS],
    pad: f32,
    /// Sums of the activations divided by the scale: of each run, of its first half, of its second half
    /// (`[3][run]`).
    pub sums: [[f32; RUNS]; 3],
    pub values: [[u8; RUN]; RUNS],
}

const _: () = assert!(size_of::<U8Chunk>().is_multiple_of(64));

/// Returns the sign with which a run's activations are stored. Signs alternate, so that the offsets that
/// [`gemm_u8`](super::gemm_u8) adds to the sums of runs cancel out.
pub(crate) const fn sign_of(run: usize) -> f32 {
    if run.is_multiple_of(2) { 1.0 } else { -1.0 }
}

/// Returns the size in bytes of a row of `k` activations.
pub(crate) const fn u8_row_bytes(k: usize) -> usize {
    spread(k.div_ceil(CHUNK) * size_of::<U8Chunk>())
}

/// Quantizes `k` activations to a row of [`U8Chunk`]s. The result does not depend on the width of `F`.
///
/// # Safety
/// - The CPU supports `V` and `F`.
/// - `x` is valid for reads of `k` floats, and `out` for writes of [`u8_row_bytes`] bytes.
#[inline(always)]
pub(crate) unsafe fn quantize_u8<V: IntSimd, F: Simd>(x: *const f32, k: usize, out: *mut u8) {
    let chunks = k.div_ceil(CHUNK);
    let mut last = [0.0f32; CHUNK];
    // SAFETY: chunks end at `k`, except the last one, which is copied to `last` first; `out` has `chunks`
    // chunks (function contract).
    unsafe {
        let mut c = 0;
        while c < chunks {
            let n = if const { V::REGISTERS > 16 } {
                chunks_at_once(chunks - c)
            } else {
                1
            };
            let mut from = [x; MAX_CHUNKS];
            for (i, from) in from.iter_mut().enumerate() {
                *from = x.wrapping_add((c + i) * CHUNK);
            }
            if c + n == chunks && !k.is_multiple_of(CHUNK) {
                from[n - 1].copy_to_nonoverlapping(last.as_mut_ptr(), k % CHUNK);
                from[n - 1] = last.as_ptr();
            }
            let to = out.add(c * size_of::<U8Chunk>()).cast::<U8Chunk>();
            match from {
                [a, b, c] if n == 3 => quantize_chunks::<V, F, 3>([a, b, c], to),
                [a, b, _] if n == 2 => quantize_chunks::<V, F, 2>([a, b], to),
                [a, ..] => quantize_chunks::<V, F, 1>([a], to),
            }
            c += n;
        }
    }
}

/// Maximum chunks quantized at a time.
const MAX_CHUNKS: usize = 3;

/// Returns how many of the remaining chunks to quantize next. More than one is better, because each step of
/// the outlier search depends on the previous one.
const fn chunks_at_once(chunks: usize) -> usize {
    match chunks {
        1 | 3 => chunks,
        _ => 2,
    }
}

/// Quantizes `N` chunks.
///
/// # Safety
/// - The CPU supports `V` and `F`.
/// - Each pointer in `x` is valid for reads of [`CHUNK`] floats, and `to` for writes of `N` chunks.
#[inline(always)]
unsafe fn quantize_chunks<V: IntSimd, F: Simd, const N: usize>(x: [*const f32; N], to: *mut U8Chunk) {
    // SAFETY: `x[i]` has `CHUNK` floats and `to` has `N` chunks (function contract).
    unsafe {
        let largest = top_magnitudes::<F, N>(x);
        for i in 0..N {
            quantize_chunk::<V, F>(x[i], &largest[i], to.wrapping_add(i));
        }
    }
}

/// Quantizes a chunk, given its largest elements, or `None` if an element is not finite.
///
/// # Safety
/// - The CPU supports `V` and `F`.
/// - `x` is valid for reads of [`CHUNK`] floats, and `to` for writes; it may be unaligned.
#[inline(always)]
unsafe fn quantize_chunk<V: IntSimd, F: Simd>(x: *const f32, largest: &Option<TopMagnitudes>, to: *mut U8Chunk) {
    // SAFETY: reads are within the `CHUNK` floats at `x`, writes within `*to`; outlier indices are below
    // `CHUNK`.
    unsafe {
        let (scale, indices, is_zero) = largest.as_ref().map_or((f32::NAN, [0; N_OUTLIERS], false), |l| {
            let largest = (*x.add(l.indices[0])).abs();
            // Large enough for finite inverses and outliers. The rounding error this adds is negligible.
            let min_scale = (largest * MIN_RELATIVE_SCALE).max(f32::MIN_POSITIVE);
            ((l.next / Q_MAX).max(min_scale), l.indices, largest.max(l.next) == 0.0)
        });
        let values = (&raw mut (*to).values).cast::<u8>();
        store_rounded::<V, F>(x, 1.0 / scale, values);
        // The product of zeros is exactly zero, regardless of how `gemm_u8` rounds the offsets.
        let stored_scale = if is_zero { 0.0 } else { scale };
        (&raw mut (*to).scale).write_unaligned(stored_scale);
        (&raw mut (*to).pad).write_unaligned(0.0);
        for (i, index) in indices.into_iter().enumerate() {
            (&raw mut (*to).outliers[i]).write_unaligned(*x.add(index) / scale * sign_of(index / RUN));
            (&raw mut (*to).outlier_index[i]).write_unaligned(index as u16);
            *values.add(index) = 0;
        }
        let mut pairs = [V::splat(0); RUNS];
        for (run, pairs) in pairs.iter_mut().enumerate() {
            let q = V::load(values.add(run * RUN));
            *pairs = V::splat(1).multiply_bytes(q);
            let q = if sign_of(run) < 0.0 { V::splat(0).sub(q) } else { q };
            q.xor(V::splat(ZERO_POINT)).store(values.add(run * RUN));
        }
        set_sums::<V>(pairs, to);
    }
}

/// Writes the elements of a chunk times `inverse` as signed bytes. Out-of-range elements become arbitrary
/// bytes.
///
/// # Safety
/// - The CPU supports `V` and `F`.
/// - `x` is valid for reads of [`CHUNK`] floats, and `values` for writes of [`CHUNK`] bytes.
#[inline(always)]
unsafe fn store_rounded<V: IntSimd, F: Simd>(x: *const f32, inverse: f32, values: *mut u8) {
    // SAFETY: all offsets are below `CHUNK` (function contract).
    unsafe {
        if F::LANES > V::Float::LANES {
            let inverse = F::splat(inverse);
            for at in (0..CHUNK).step_by(F::LANES) {
                F::load(x.add(at)).mul(inverse).store_i8(values.add(at));
            }
            return;
        }
        let inverse = V::Float::splat(inverse);
        for at in (0..CHUNK).step_by(RUN) {
            let load = |i: usize| V::Float::load(x.add(at + i * V::Float::LANES)).mul(inverse);
            let [even, odd] = V::from_floats([load(0), load(1), load(2), load(3)]);
            even.and(V::words(0xff)).or(odd.shl(8)).store(values.add(at));
        }
    }
}

/// The elements of largest magnitude in a chunk.
#[derive(Clone, Copy)]
struct TopMagnitudes {
    /// Indices of the [`N_OUTLIERS`] largest elements.
    indices: [usize; N_OUTLIERS],
    /// Largest magnitude among the other elements.
    next: f32,
}

/// Returns the largest elements of each chunk, or `None` for a chunk with a non-finite element. Magnitudes
/// that differ by less than a factor of 1 + 2^-15 count as equal; the first element wins.
///
/// # Safety
/// - The CPU supports `F`.
/// - Each pointer in `x` is valid for reads of [`CHUNK`] floats.
#[inline(always)]
unsafe fn top_magnitudes<F: Simd, const N: usize>(x: [*const f32; N]) -> [Option<TopMagnitudes>; N] {
    // SAFETY: all reads are below `CHUNK` (function contract).
    unsafe {
        // The largest keys of each lane, in descending order.
        let mut largest = [[F::splat(0.0); N_OUTLIERS + 1]; N];
        let mut is_finite = [F::splat(0.0); N];
        for at in (0..CHUNK).step_by(F::LANES) {
            for n in 0..N {
                let x = x[n].add(at);
                is_finite[n] = F::load(x).mul_add(F::splat(0.0), is_finite[n]);
                // Magnitudes are ordered by their bits; the lowest bits are replaced by the element's index.
                let magnitude = F::and(F::load_words(x.cast()), MAGNITUDE & !INDEX_BITS);
                let mut key = F::from_bits(F::or(magnitude, F::load_words(INDEX_KEYS.as_ptr().add(at).cast())));
                for largest in &mut largest[n] {
                    let smaller = key.min(*largest);
                    *largest = key.max(*largest);
                    key = smaller;
                }
            }
        }
        let mut indices = [[0; N_OUTLIERS]; N];
        for i in 0..N_OUTLIERS {
            for n in 0..N {
                indices[n][i] = pop_largest(&mut largest[n]);
            }
        }
        let mut results = [None; N];
        for n in 0..N {
            let next = *x[n].add(index_of_key(largest[n][0].largest()));
            if is_finite[n].sum() == 0.0 {
                let (indices, next) = (indices[n], next.abs());
                results[n] = Some(TopMagnitudes { indices, next });
            }
        }
        results
    }
}

/// Removes the largest key and returns the index of its element.
#[inline(always)]
fn pop_largest<F: Simd>(largest: &mut [F; N_OUTLIERS + 1]) -> usize {
    let key = largest[0].largest();
    let taken = largest[0].equals(largest[0].constant(key));
    for i in 0..N_OUTLIERS {
        largest[i] = F::select(taken, largest[i + 1], largest[i]);
    }
    index_of_key(key)
}

/// All bits of a float except its sign.
const MAGNITUDE: u32 = u32::MAX >> 1;

/// Low bits of a key, which encode the index of its element in descending order.
const INDEX_BITS: u32 = CHUNK as u32 - 1;

/// Low bits of each element's sort key, which encode the element's index.
const INDEX_KEYS: [u32; CHUNK] = {
    let mut indices = [0; CHUNK];
    let mut at = 0;
    while at < CHUNK {
        indices[at] = INDEX_BITS - at as u32;
        at += 1;
    }
    indices
};

/// Returns the index of a key's element.
#[inline(always)]
fn index_of_key(key: f32) -> usize {
    (INDEX_BITS - (key.to_bits() & INDEX_BITS)) as usize
}

/// Stores the sums of a chunk. Each register holds 16 sums of adjacent pairs of a run's integers.
///
/// # Safety
/// - The CPU supports `V`.
/// - `to` is valid for writes; it may be unaligned.
#[inline(always)]
unsafe fn set_sums<V: IntSimd>(pairs: [V; RUNS], to: *mut U8Chunk) {
    // 8 registers with two pairs of each run: 4 registers of the first half, 4 of the second.
    let pairs = V::transpose(pairs);
    // SAFETY: each row of `sums` has 8 floats, one per run, and `to` is valid for writes (function contract).
    unsafe {
        let halves = [sum_of_half(&pairs[..4]), sum_of_half(&pairs[4..])];
        halves[0].add(halves[1]).store((&raw mut (*to).sums[0]).cast());
        halves[0].store((&raw mut (*to).sums[1]).cast());
        halves[1].store((&raw mut (*to).sums[2]).cast());
    }
}

/// Returns the sum of one half of each run.
#[inline(always)]
fn sum_of_half<V: IntSimd>(pairs: &[V]) -> V::Float {
    let total = pairs[0].add16(pairs[1]).add16(pairs[2].add16(pairs[3]));
    // SAFETY: a value of type `V` proves that the CPU supports it.
    let ones = unsafe { V::words(1) };
    total.multiply_pairs(ones).to_floats()
}
