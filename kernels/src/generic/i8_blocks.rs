//! Activations as integers of 8 bits, for products with panels of weights of at most 6 bits.
//!
//! A row is `scale * multiplier * q` with integers q of 8 bits, one integer multiplier of 15 bits for each 16 values and one scale for the row.
//! Since multipliers are integers, products with them are exact and cost one instruction that is needed anyway.

use super::integers::{CHUNK, I16Header, RUN, RUNS, largest_magnitude, spread};
use super::panels::HALVES;
use crate::simd::{IntSimd, Simd};

/// Activations that share a multiplier.
const HALF: usize = RUN / 2;

const Q_MAX: f32 = 127.0;
const MULTIPLIER_MAX: f32 = 32767.0;

/// [`CHUNK`] activations. What a row lacks at the end is zero. Rows start with an [`I16Header`].
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct I8Chunk {
    /// The multiplier of each half of a run, in both integers of 16 bits.
    pub multipliers: [[i16; 2]; HALVES],
    /// For each half of a run -32 times the sums of the q of which the index modulo 4 is 0 or 1, and 2 or 3: what takes the centre out of
    /// weights of 6 bits.
    pub centers: [[i16; 2]; HALVES],
    /// Sums of `multiplier * q`: of each run, then of the halves, `[half][run]`.
    pub sums: [[f32; RUNS]; 3],
    pad: [f32; RUNS],
    pub values: [[i8; HALF]; HALVES],
}

/// Bytes of a row of `k` activations.
pub(crate) const fn i8_row_bytes(k: usize) -> usize {
    spread(size_of::<I16Header>() + k.div_ceil(CHUNK) * size_of::<I8Chunk>())
}

/// Writes `k` activations as a row.
///
/// # Safety
/// The CPU has `V`'s instructions, `x` is valid for `k` floats and `out` for [`i8_row_bytes`].
#[inline(always)]
pub(crate) unsafe fn quantize_i8<V: IntSimd>(x: *const f32, k: usize, out: *mut u8) {
    // SAFETY: the caller's promise; all accesses lie below `k`, those of `out` within the row.
    unsafe {
        let max = largest_magnitude::<V::Float>(x, k);
        // Not below the smallest normal float, so that inverses are finite: what is rounded away then is of no account.
        let scale = if max.is_finite() {
            (max / (Q_MAX * MULTIPLIER_MAX)).max(f32::MIN_POSITIVE)
        } else {
            f32::NAN
        };
        out.cast::<I16Header>().write_unaligned(I16Header::new(scale));
        for at in (0..k).step_by(CHUNK) {
            let chunk = out.add(size_of::<I16Header>() + at / CHUNK * size_of::<I8Chunk>());
            quantize_chunk::<V>(x.add(at), k - at, scale, chunk.cast());
        }
    }
}

/// Writes a chunk, of which there may be only `n` activations.
///
/// # Safety
/// As for [`quantize_i8`]; `to` needs no alignment.
#[inline(always)]
unsafe fn quantize_chunk<V: IntSimd>(x: *const f32, n: usize, scale: f32, to: *mut I8Chunk) {
    let mut chunk = I8Chunk {
        multipliers: [[0; 2]; HALVES],
        centers: [[0; 2]; HALVES],
        sums: [[0.0; RUNS]; 3],
        pad: [0.0; RUNS],
        values: [[0; HALF]; HALVES],
    };
    let halves = HALVES.min(n.div_ceil(HALF));
    // SAFETY: the caller's promise; all reads lie below `n`.
    unsafe {
        let mut largest = [0.0; HALVES];
        for (half, largest) in largest.iter_mut().enumerate().take(halves) {
            let x = load_half::<V::Float>(x.add(half * HALF), n - half * HALF);
            *largest = x[0].abs().max(x[1].abs()).largest();
        }
        let mut inverses = [0.0; HALVES];
        for half in 0..HALVES {
            // Rounded up, so that no q is beyond its range.
            let multiplier = (largest[half] / (Q_MAX * scale)).ceil().clamp(1.0, MULTIPLIER_MAX);
            inverses[half] = if scale.is_nan() {
                0.0
            } else {
                1.0 / (multiplier * scale)
            };
            chunk.multipliers[half] = [multiplier as i16; 2];
        }
        for half in 0..halves {
            let inverse = V::Float::splat(inverses[half]);
            let x = load_half::<V::Float>(x.add(half * HALF), n - half * HALF);
            for (i, x) in x.into_iter().enumerate() {
                let q = x.mul(inverse).round();
                let q = q.min(V::Float::splat(Q_MAX)).max(V::Float::splat(-Q_MAX));
                q.store_i8(chunk.values[half].as_mut_ptr().add(i * 8).cast());
            }
        }
        set_sums::<V>(&mut chunk);
        to.write_unaligned(chunk);
    }
}

/// Sets the sums and centres of a chunk, given the rest.
///
/// # Safety
/// The CPU has `V`'s instructions.
#[inline(always)]
unsafe fn set_sums<V: IntSimd>(chunk: &mut I8Chunk) {
    // SAFETY: the caller's promise; a run is 32 bytes, and so are 8 pairs of integers of 16 bits.
    unsafe {
        // Of each run, 16 sums of neighbours. Then their groups of 4 bytes, pairs of sums, in a register for each: 4 registers for the first half of
        // all runs, and 4 for the second.
        let mut pairs = [V::splat(0); RUNS];
        for (run, pairs) in pairs.iter_mut().enumerate() {
            *pairs = V::splat(1).multiply_bytes(V::load(chunk.values[2 * run].as_ptr().cast()));
        }
        let pairs = V::transpose(pairs);
        for second in 0..2 {
            let of_half = &pairs[4 * second..];
            let total = of_half[0].add16(of_half[1]).add16(of_half[2].add16(of_half[3]));
            let mut pairs = [[0i16; 2]; RUNS];
            total.store(pairs.as_mut_ptr().cast());
            let mut multipliers = [[0i16; 2]; RUNS];
            for run in 0..RUNS {
                multipliers[run] = chunk.multipliers[2 * run + second];
                chunk.centers[2 * run + second] = [-32 * pairs[run][0], -32 * pairs[run][1]];
            }
            let sums = total.multiply_pairs(V::load(multipliers.as_ptr().cast())).to_floats();
            sums.store(chunk.sums[1 + second].as_mut_ptr());
        }
        let [both, first, second] = &mut chunk.sums;
        V::Float::load(first.as_ptr())
            .add(V::Float::load(second.as_ptr()))
            .store(both.as_mut_ptr());
    }
}

/// 16 floats, of which there may be only `n`; the rest are zero.
///
/// # Safety
/// The CPU has `V`'s instructions and `x` is valid for `n` floats.
#[inline(always)]
unsafe fn load_half<V: Simd>(x: *const f32, n: usize) -> [V; 2] {
    // SAFETY: the caller's promise; all reads lie below `n`.
    unsafe {
        if n >= HALF {
            return [V::load(x), V::load(x.add(8))];
        }
        let mut floats = [0.0f32; HALF];
        x.copy_to_nonoverlapping(floats.as_mut_ptr(), n);
        [V::load(floats.as_ptr()), V::load(floats.as_ptr().add(8))]
    }
}
