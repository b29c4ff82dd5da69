//! Activations quantized to 16-bit integers, for all integer matmuls except [`gemm_u8`](super::gemm_u8).
//!
//! Activations have the same chunks and [runs](crate::layout::runs) as the weights. The product of a run thus needs one
//! sum of integer products and one stored sum:
//!
//! ```text
//! weight       w = scale_w * q_w + min_w      8 bits, scale and minimum per run or half run
//! activation   x ~ scale_x * q_x              16 bits, scale per row
//!
//! w . x over a run = scale_x * (scale_w * sum(q_w q_x) + min_w * sum(q_x))
//! ```
//!
//! A row in memory:
//!
//! ```text
//! | I16Header | I16Chunk 0                          | I16Chunk 1 | ..
//! | scale     | sums totals | values       | parts  |
//! |           | per run     | even, odd    | low, high bytes of the same integers
//! ```
//!
//! Quantizing a row takes two passes:
//!
//! ```text
//! scale = max |x| / I16_MAX
//! for each chunk:
//!     for each run:
//!         q = round(x / scale)
//!         store q as 16-bit values (even, odd) and as bytes (q = 256 * high + low)
//!     store the sums of q per run and per half run
//! ```

use crate::layout::runs::{CHUNK, RUN, RUNS};
use crate::simd::{IntSimd, Simd};

/// Header of a row of quantized activations `x ~ scale * q`, followed by the row's chunks.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct I16Header {
    /// NaN if an activation is not finite, so that every result computed from the row is NaN.
    pub scale: f32,
    /// Padding that preserves the alignment of the row for its chunks.
    pad: [f32; 15],
}

impl I16Header {
    pub(crate) const fn new(scale: f32) -> I16Header {
        I16Header { scale, pad: [0.0; 15] }
    }

    /// Returns the scale of a row of activations.
    ///
    /// # Safety
    /// `x` points to a row written by [`quantize_i16`].
    #[inline(always)]
    pub(super) unsafe fn scale_at(x: *const u8) -> f32 {
        // SAFETY: a row starts with an `I16Header` (function contract); the read needs no alignment.
        unsafe { x.cast::<I16Header>().read_unaligned().scale }
    }
}

/// A chunk of [`CHUNK`] quantized activations. Elements beyond the end of the row are 0.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct I16Chunk {
    /// Sums of the integers as floats: of each run, of its first half, of its second half (`[3][run]`). They
    /// have at most 21 bits and are therefore exact.
    pub sums: [[f32; RUNS]; 3],
    /// Integer form of the values of `sums`.
    pub totals: [[i32; RUNS]; 3],
    /// 16-bit integers of each run, even indices first, then odd: the order in which [`IntSimd::widen`]
    /// returns weights.
    pub values: [[[i16; RUN / 2]; 2]; RUNS],
    /// The same integers as bytes, with `q = 256 * high + low`: the low bytes of each run, then the high
    /// bytes.
    pub parts: [[[i8; RUN]; 2]; RUNS],
}

/// Returns the size in bytes of a row of `k` activations.
pub(crate) const fn i16_row_bytes(k: usize) -> usize {
    spread(size_of::<I16Header>() + k.div_ceil(CHUNK) * size_of::<I16Chunk>())
}

/// Rounds a row size up to a multiple of 8 cache lines plus 4. The same chunk of adjacent rows then maps to different
/// sets of the L1 cache.
pub(super) const fn spread(bytes: usize) -> usize {
    const LINE: usize = 64;
    (bytes + 4 * LINE).next_multiple_of(8 * LINE) - 4 * LINE
}

/// Largest magnitude of the integers, for which both byte parts fit signed bytes.
const I16_MAX: f32 = 127.0 * 256.0 + 127.0;

/// Quantizes `k` activations to a row of 16-bit integers.
///
/// # Safety
/// - The CPU supports `V`.
/// - `x` is valid for reads of `k` floats, and `out` for writes of [`i16_row_bytes`] bytes.
#[inline(always)]
pub(crate) unsafe fn quantize_i16<V: IntSimd>(x: *const f32, k: usize, out: *mut u8) {
    // SAFETY: reads of `x` end at `k`, and the header and `k / CHUNK` chunks (rounded up) fit in
    // `i16_row_bytes` (function contract).
    unsafe {
        let max = largest_magnitude::<V::Float>(x, k);
        // At least the smallest normal float, so that the inverse is finite. The rounding error this adds is
        // negligible.
        let scale = if max.is_finite() {
            (max / I16_MAX).max(f32::MIN_POSITIVE)
        } else {
            f32::NAN
        };
        out.cast::<I16Header>().write_unaligned(I16Header::new(scale));
        let inverse = V::Float::splat(if scale.is_nan() { 0.0 } else { 1.0 / scale });
        for at in (0..k).step_by(CHUNK) {
            let chunk = out.add(size_of::<I16Header>() + at / CHUNK * size_of::<I16Chunk>());
            let mut pairs = [V::splat(0); RUNS];
            for i in 0..RUNS {
                let at = at + i * RUN;
                let to = chunk.add(std::mem::offset_of!(I16Chunk, values) + i * 2 * RUN);
                let values = V::from_floats(scaled::<V::Float>(x.wrapping_add(at), k.saturating_sub(at), inverse));
                values[0].store(to);
                values[1].store(to.add(RUN));
                let [low, high] = parts(values);
                let to = chunk.add(std::mem::offset_of!(I16Chunk, parts) + i * 2 * RUN);
                low.store(to);
                high.store(to.add(RUN));
                pairs[i] = values[0]
                    .multiply_pairs(V::words(1))
                    .add32(values[1].multiply_pairs(V::words(1)));
            }
            set_sums(pairs, chunk.cast());
        }
    }
}

/// Returns the largest magnitude of `k` floats, or a non-finite number if any element is not finite.
///
/// # Safety
/// - The CPU supports `V`.
/// - `x` is valid for reads of `k` floats.
#[inline(always)]
pub(super) unsafe fn largest_magnitude<V: Simd>(x: *const f32, k: usize) -> f32 {
    // SAFETY: all reads end at `k` (function contract).
    unsafe {
        // Two alternating maximums hide the latency. `0 * x` accumulates NaN if an element is not finite.
        let mut max = [V::splat(0.0); 2];
        let mut zeros = [V::splat(0.0); 2];
        let mut at = 0;
        while at < k {
            let values = if at + V::LANES <= k {
                V::load(x.add(at))
            } else {
                V::load_partial(x.add(at), k - at)
            };
            max = [max[1], values.abs().max(max[0])];
            zeros = [zeros[1], values.mul_add(V::splat(0.0), zeros[0])];
            at += V::LANES;
        }
        max[0].max(max[1]).largest() + zeros[0].add(zeros[1]).sum()
    }
}

/// Loads 32 floats and multiplies them by `inverse`. Elements at index `n` and above are 0.
///
/// # Safety
/// - The CPU supports `V`.
/// - `x` is valid for reads of `min(n, 32)` floats.
#[inline(always)]
unsafe fn scaled<V: Simd>(x: *const f32, n: usize, inverse: V) -> [V; 4] {
    // A loop, because the closure of `array::map` would not be compiled with the instruction set enabled.
    let mut values = [inverse; 4];
    for (i, value) in values.iter_mut().enumerate() {
        let at = i * V::LANES;
        // SAFETY: all reads end at `n` (function contract).
        *value = unsafe {
            if at + V::LANES <= n {
                V::load(x.add(at))
            } else {
                V::load_partial(x.wrapping_add(at), n.saturating_sub(at))
            }
        };
        // An `inverse` of 0 turns finite elements into 0.
        *value = value.mul(inverse);
    }
    values
}

/// Splits 32 16-bit integers, given as even and odd indices, into their low bytes and their high bytes in
/// order.
///
/// # Safety
/// The CPU supports `V`.
#[inline(always)]
unsafe fn parts<V: IntSimd>(values: [V; 2]) -> [V; 2] {
    // SAFETY: the CPU supports `V` (function contract).
    unsafe {
        // Round the high bytes so that the low bytes are signed.
        let rounded = [values[0].add16(V::words(128)), values[1].add16(V::words(128))];
        [
            values[0].and(V::words(0x00ff)).or(values[1].shl(8)),
            rounded[0].shr(8).or(rounded[1].and(V::words(-0x0100))),
        ]
    }
}

/// Stores the sums of a chunk. Each register holds 8 partial sums of a run: 4 of its first half, then 4 of
/// its second.
///
/// # Safety
/// - The CPU supports `V`.
/// - `to` is valid for writes; it may be unaligned.
#[inline(always)]
unsafe fn set_sums<V: IntSimd>(sums: [V; RUNS], to: *mut I16Chunk) {
    let [a, b, c, d, e, f, g, h] = V::transpose(sums);
    let (first, second) = (a.add32(b).add32(c.add32(d)), e.add32(f).add32(g.add32(h)));
    for (i, totals) in [first.add32(second), first, second].into_iter().enumerate() {
        // SAFETY: `totals[i]` and `sums[i]` have 8 elements each, and `to` is valid for writes (function
        // contract).
        unsafe {
            totals.store((&raw mut (*to).totals[i]).cast());
            totals.to_floats().store((&raw mut (*to).sums[i]).cast());
        }
    }
}
