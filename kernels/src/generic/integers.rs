//! Blocks to integers, and activations to integers of 16 bits: what products of integers are computed from.
//!
//! Both come in chunks of [`CHUNK`] elements, which are [`RUNS`] runs of [`RUN`] elements.

use crate::quants::Block;
use crate::simd::{IntSimd, Simd};

/// Neighbouring weights that are unpacked together.
pub(crate) const RUN: usize = 32;

/// Runs in a chunk.
pub(crate) const RUNS: usize = 8;

/// Elements whose scales are computed together: a multiple of every block.
pub(crate) const CHUNK: usize = RUN * RUNS;

/// What turns the integers of a chunk into weights, for each run: `[half][run]`, where half 0 is a run's first 16 weights.
/// Types with one scale for a whole run only set half 0.
#[derive(Default)]
#[repr(C, align(32))]
pub(crate) struct Scales {
    pub scales: [[f32; RUNS]; 2],
    pub mins: [[f32; RUNS]; 2],
}

/// A type whose weights are `scale * q + min` with integers q of 8 bits. One such decoder serves dot products and panels.
///
/// # Safety
/// The CPU has `V`'s instructions and `p` is valid for the blocks of what is unpacked. `p` is where a chunk starts; of the last chunk
/// of a row there may be only the first runs: whole blocks.
pub(crate) trait Unpack<V: IntSimd>: Block {
    /// Whether the halves of a run have scales and minimums of their own.
    const BY_16: bool = false;

    /// Whether integers are signed, -128 to 127, and not unsigned, 0 to 255.
    const SIGNED: bool = false;

    /// Bits of the integers: 8, or at most 5 if they are unsigned, or 6 if they are signed, or unsigned and stand for values around 32 with
    /// minimums `-32 * scale`.
    const BITS: u32 = 8;

    /// Whether there are minimums; else they are 0 and not set. Types whose unsigned integers stand for values around a constant zero
    /// have minimums, too: `-ZERO * scale`.
    const HAS_MINS: bool = !Self::SIGNED;

    /// What unsigned integers stand for 0 with, a power of two, if that is all that minimums are for; else 0. Sums of integers are then those of signed
    /// ones without minimums, once `ZERO` times the sum of the activations is taken from them.
    const ZERO: u8 = 0;

    /// Sets the scales and minimums of the first `runs` runs of a chunk; those of further runs to any finite number.
    unsafe fn scales(p: *const u8, runs: usize, to: &mut Scales);

    /// The integers of run `i` of a chunk in the order of the weights. `i` is mostly a constant once inlined, and what neighbouring runs
    /// share is then loaded once.
    unsafe fn values(p: *const u8, i: usize) -> V;
}

/// The half float at byte `at` of the block of each of `runs` runs; zeros for the runs that a chunk lacks.
///
/// # Safety
/// As for [`Unpack`].
#[inline(always)]
pub(crate) unsafe fn halves_of_blocks<V: IntSimd, B: Block>(p: *const u8, at: usize, runs: usize) -> V::Float {
    // SAFETY: the caller's promise: there are blocks for as many runs.
    unsafe {
        if runs == RUNS && B::TYPE.block_size() == RUN {
            return V::gather_f16(p.add(at), size_of::<B>());
        }
        let mut halves = [[0u8; 2]; RUNS];
        for (i, half) in halves.iter_mut().enumerate().take(runs) {
            let block = p.cast::<B>().add(i * RUN / B::TYPE.block_size());
            *half = block.cast::<u8>().add(at).cast::<[u8; 2]>().read();
        }
        V::Float::load_f16(halves.as_ptr().cast())
    }
}

/// Sets the scales of runs, and minimums for integers around `zero`.
///
/// # Safety
/// The CPU has `V`'s instructions.
#[inline(always)]
pub(crate) unsafe fn set_scales<V: Simd>(scales: V, zero: f32, to: &mut Scales) {
    // SAFETY: 8 lanes each.
    unsafe {
        scales.store(to.scales[0].as_mut_ptr());
        if zero != 0.0 {
            scales.mul(V::splat(-zero)).store(to.mins[0].as_mut_ptr());
        }
    }
}

/// Sets the scales or minimums of half runs: 16 signed bytes times `factor`.
///
/// # Safety
/// The CPU has `V`'s instructions and `bytes` is valid for 16 bytes.
#[inline(always)]
pub(crate) unsafe fn set_halves<V: IntSimd>(bytes: *const u8, factor: V::Float, to: &mut [[f32; RUNS]; 2]) {
    // SAFETY: the caller's promise.
    unsafe {
        let [first, second] = V::load_even_odd_i8(bytes);
        first.mul(factor).store(to[0].as_mut_ptr());
        second.mul(factor).store(to[1].as_mut_ptr());
    }
}

/// Bits of each byte moved from position `from` to position `to`; what else moves is to be masked.
#[inline(always)]
pub(crate) fn move_bits<V: IntSimd>(values: V, from: usize, to: usize) -> V {
    if from < to {
        values.shl((to - from) as u32)
    } else {
        values.shr((from - to) as u32)
    }
}

/// What rows of activations as integers start with. A row `x ~ scale * q` with integers q of 16 bits is this, then its chunks.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct I16Header {
    /// Not a number if an activation is not finite: then so are all products with it.
    pub scale: f32,
    /// So that chunks keep the row's alignment.
    pad: [f32; 15],
}

impl I16Header {
    pub(crate) const fn new(scale: f32) -> I16Header {
        I16Header { scale, pad: [0.0; 15] }
    }

    /// The scale of a row of activations.
    ///
    /// # Safety
    /// There is a row at `x`.
    #[inline(always)]
    pub(super) unsafe fn scale_at(x: *const u8) -> f32 {
        // SAFETY: the caller's promise.
        unsafe { x.cast::<I16Header>().read_unaligned().scale }
    }
}

/// [`CHUNK`] activations. What a row lacks at the end is zero.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct I16Chunk {
    /// Sums of the integers of each run, then of the halves, `[half][run]`: exact, because they have at most 21 bits.
    pub sums: [[f32; RUNS]; 3],
    /// The same as integers.
    pub totals: [[i32; RUNS]; 3],
    /// The integers of each run: those with even index, those with odd index, as [`IntSimd::widen`] leaves weights.
    pub values: [[[i16; RUN / 2]; 2]; RUNS],
    /// The same integers `256 high + low`: the low parts of each run, then the high parts.
    pub parts: [[[i8; RUN]; 2]; RUNS],
}

/// Bytes of a row of `k` activations.
pub(crate) const fn i16_row_bytes(k: usize) -> usize {
    spread(size_of::<I16Header>() + k.div_ceil(CHUNK) * size_of::<I16Chunk>())
}

/// Bytes of a row, increased to 4 cache lines more than a multiple of 8 of them: the same chunks of neighbouring rows then lie in different sets of
/// the first-level cache.
pub(super) const fn spread(bytes: usize) -> usize {
    const LINE: usize = 64;
    (bytes + 4 * LINE).next_multiple_of(8 * LINE) - 4 * LINE
}

/// The largest magnitude of the integers of a row: both parts are then signed bytes.
const I16_MAX: f32 = 127.0 * 256.0 + 127.0;

/// Writes `k` activations as a row.
///
/// # Safety
/// The CPU has `V`'s instructions, `x` is valid for `k` floats and `out` for [`i16_row_bytes`].
#[inline(always)]
pub(crate) unsafe fn quantize_i16<V: IntSimd>(x: *const f32, k: usize, out: *mut u8) {
    // SAFETY: the caller's promise; all accesses lie below `k`, those of `out` within the row.
    unsafe {
        let max = largest_magnitude::<V::Float>(x, k);
        // Not below the smallest normal float, so that the inverse is finite: what is rounded away then is of no account.
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

/// The largest magnitude of `k` floats; not finite if one of them is not.
///
/// # Safety
/// The CPU has `V`'s instructions and `x` is valid for `k` floats.
#[inline(always)]
pub(super) unsafe fn largest_magnitude<V: Simd>(x: *const f32, k: usize) -> f32 {
    // SAFETY: all reads lie below `k`.
    unsafe {
        // The largest of several alternating ones; and 0 times each, which is no number for those that are not finite.
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

/// 32 floats times `inverse`, of which there may be only `n`; the rest are zero.
///
/// # Safety
/// The CPU has `V`'s instructions and `x` is valid for `n` floats.
#[inline(always)]
unsafe fn scaled<V: Simd>(x: *const f32, n: usize, inverse: V) -> [V; 4] {
    // Not an array's `map`, whose closure would not have the instructions enabled.
    let mut values = [inverse; 4];
    for (i, value) in values.iter_mut().enumerate() {
        let at = i * V::LANES;
        // SAFETY: the caller's promise; all reads lie below `n`.
        *value = unsafe {
            if at + V::LANES <= n {
                V::load(x.add(at))
            } else {
                V::load_partial(x.wrapping_add(at), n.saturating_sub(at))
            }
        };
        // 0 where the inverse is 0, so that what is not finite does not become an integer.
        *value = value.mul(inverse);
    }
    values
}

/// The low and the high parts of 32 integers in their order, given those with even and those with odd index.
///
/// # Safety
/// The CPU has `V`'s instructions.
#[inline(always)]
unsafe fn parts<V: IntSimd>(values: [V; 2]) -> [V; 2] {
    // SAFETY: the caller's promise.
    unsafe {
        // Rounded, so that low parts are signed.
        let rounded = [values[0].add16(V::words(128)), values[1].add16(V::words(128))];
        [
            values[0].and(V::words(0x00ff)).or(values[1].shl(8)),
            rounded[0].shr(8).or(rounded[1].and(V::words(-0x0100))),
        ]
    }
}

/// Sets the sums of a chunk, given 8 sums of each run: four of its first half, then four of its second.
///
/// # Safety
/// The CPU has `V`'s instructions and `to` is valid for writes; it needs no alignment.
#[inline(always)]
unsafe fn set_sums<V: IntSimd>(sums: [V; RUNS], to: *mut I16Chunk) {
    let [a, b, c, d, e, f, g, h] = V::transpose(sums);
    let (first, second) = (a.add32(b).add32(c.add32(d)), e.add32(f).add32(g.add32(h)));
    for (i, totals) in [first.add32(second), first, second].into_iter().enumerate() {
        // SAFETY: the caller's promise; 8 integers and 8 floats.
        unsafe {
            totals.store((&raw mut (*to).totals[i]).cast());
            totals.to_floats().store((&raw mut (*to).sums[i]).cast());
        }
    }
}
