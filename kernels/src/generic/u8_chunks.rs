//! Activations as unsigned integers of 8 bits with a scale for each 256, of which the largest few are kept as floats: what [`dots`](super::gemm_u8) multiplies.
//!
//! In language models few activations are many times as large as the others. With these kept aside one scale serves a whole chunk, so that it is no part
//! of the inner loop, and the others keep more of their bits than with a scale for each 32.

use super::integers::{CHUNK, RUN, RUNS, spread};
use crate::simd::{IntSimd, Simd};

/// Activations of a chunk that are kept as floats.
pub(crate) const ASIDE: usize = 4;

/// The integer that stands for 0.
pub(crate) const CENTER: u8 = 128;

/// The largest distance from it.
const Q_MAX: f32 = 127.0;

/// The smallest scale, as a part of the largest activation: what is rounded by so little makes no difference to a sum with that activation in f32.
const LEAST_SCALE: f32 = 1.0 / (1u64 << 40) as f32;

/// [`CHUNK`] activations, each `scale * (q - CENTER)`, or `scale * aside` for those kept aside, and the negative of that in runs with an odd number: see [`sign_of`]. What a row lacks at the end counts as zero in the last run and is not looked at beyond it.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct U8Chunk {
    /// Not a number if one of the activations is not finite.
    pub scale: f32,
    /// Those kept aside, in units of the scale and with the signs of their runs, and where they are. The integers there stand for 0.
    pub aside: [f32; ASIDE],
    pub aside_at: [u16; ASIDE],
    pad: f32,
    /// Sums of activations in units of the scale: of each run, then of the halves, `[half][run]`.
    pub sums: [[f32; RUNS]; 3],
    pub values: [[u8; RUN]; RUNS],
}

const _: () = assert!(size_of::<U8Chunk>().is_multiple_of(64));

/// The sign of the activations of a run in what stands for them. It alternates, so that what is added to the sums of all runs cancels out: see [`dots`](super::gemm_u8).
pub(crate) const fn sign_of(run: usize) -> f32 {
    if run.is_multiple_of(2) { 1.0 } else { -1.0 }
}

/// Bytes of a row of `k` activations.
pub(crate) const fn u8_row_bytes(k: usize) -> usize {
    spread(k.div_ceil(CHUNK) * size_of::<U8Chunk>())
}

/// Writes `k` activations as a row. `F` holds as many floats as the CPU takes at a time: the result is the same.
///
/// # Safety
/// The CPU has `V`'s and `F`'s instructions, `x` is valid for `k` floats and `out` for [`u8_row_bytes`].
#[inline(always)]
pub(crate) unsafe fn quantize_u8<V: IntSimd, F: Simd>(x: *const f32, k: usize, out: *mut u8) {
    let chunks = k.div_ceil(CHUNK);
    let mut last = [0.0f32; CHUNK];
    // SAFETY: the caller's promise; all accesses lie below `k`, those of `out` within the row.
    unsafe {
        let mut c = 0;
        while c < chunks {
            let n = if const { V::REGISTERS > 16 } {
                at_once(chunks - c)
            } else {
                1
            };
            let mut from = [x; MOST_AT_ONCE];
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

/// Chunks that are quantized at a time.
const MOST_AT_ONCE: usize = 3;

/// How many of some chunks are quantized at a time: more than one if possible, as each step of finding the largest elements waits for the one before.
const fn at_once(chunks: usize) -> usize {
    match chunks {
        1 | 3 => chunks,
        _ => 2,
    }
}

/// Writes `N` chunks, one after the other.
///
/// # Safety
/// As for [`quantize_chunk`].
#[inline(always)]
unsafe fn quantize_chunks<V: IntSimd, F: Simd, const N: usize>(x: [*const f32; N], to: *mut U8Chunk) {
    // SAFETY: the caller's promise.
    unsafe {
        let largest = largest_of::<F, N>(x);
        for i in 0..N {
            quantize_chunk::<V, F>(x[i], &largest[i], to.wrapping_add(i));
        }
    }
}

/// Writes a chunk, given the largest of its elements.
///
/// # Safety
/// The CPU has `V`'s and `F`'s instructions, `x` is valid for [`CHUNK`] floats and `to`, which needs no alignment, for writes.
#[inline(always)]
unsafe fn quantize_chunk<V: IntSimd, F: Simd>(x: *const f32, largest: &Option<Largest>, to: *mut U8Chunk) {
    // SAFETY: the caller's promise; all accesses lie within the chunks.
    unsafe {
        let (scale, places) = largest.as_ref().map_or((f32::NAN, [0; ASIDE]), |l| {
            // Not so small that inverses or units of it are infinite: what is rounded away then is of no account.
            let least = ((*x.add(l.places[0])).abs() * LEAST_SCALE).max(f32::MIN_POSITIVE);
            ((l.next / Q_MAX).max(least), l.places)
        });
        let values = (&raw mut (*to).values).cast::<u8>();
        store_rounded::<V, F>(x, 1.0 / scale, values);
        (&raw mut (*to).scale).write_unaligned(scale);
        (&raw mut (*to).pad).write_unaligned(0.0);
        for (i, place) in places.into_iter().enumerate() {
            (&raw mut (*to).aside[i]).write_unaligned(*x.add(place) / scale * sign_of(place / RUN));
            (&raw mut (*to).aside_at[i]).write_unaligned(place as u16);
            *values.add(place) = 0;
        }
        let mut pairs = [V::splat(0); RUNS];
        for (run, pairs) in pairs.iter_mut().enumerate() {
            let q = V::load(values.add(run * RUN));
            *pairs = V::splat(1).multiply_bytes(q);
            let q = if sign_of(run) < 0.0 { V::splat(0).sub(q) } else { q };
            q.xor(V::splat(CENTER)).store(values.add(run * RUN));
        }
        set_sums::<V>(pairs, to);
    }
}

/// Writes the elements of a chunk times `inverse` as signed bytes. What exceeds those becomes any byte.
///
/// # Safety
/// As for [`quantize_chunk`].
#[inline(always)]
unsafe fn store_rounded<V: IntSimd, F: Simd>(x: *const f32, inverse: f32, values: *mut u8) {
    // SAFETY: the caller's promise.
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

/// The largest of a chunk.
#[derive(Clone, Copy)]
struct Largest {
    /// Where the [`ASIDE`] elements of largest magnitude are.
    places: [usize; ASIDE],
    /// The largest magnitude among the others.
    next: f32,
}

/// The largest of each chunk; `None` if an element is not finite. Magnitudes that differ by less than 2^-15 of themselves count as equal: of those the first are
/// taken.
///
/// # Safety
/// The CPU has `F`'s instructions, and `x` are valid for [`CHUNK`] floats.
#[inline(always)]
unsafe fn largest_of<F: Simd, const N: usize>(x: [*const f32; N]) -> [Option<Largest>; N] {
    // SAFETY: the caller's promise.
    unsafe {
        // The largest keys of each lane, in falling order.
        let mut largest = [[F::splat(0.0); ASIDE + 1]; N];
        let mut is_finite = [F::splat(0.0); N];
        for at in (0..CHUNK).step_by(F::LANES) {
            for n in 0..N {
                let x = x[n].add(at);
                is_finite[n] = F::load(x).mul_add(F::splat(0.0), is_finite[n]);
                // Magnitudes are in the order of their bits, of which the last make room for the place.
                let magnitude = F::and(F::load_words(x.cast()), MAGNITUDE & !PLACE);
                let mut key = F::from_bits(F::or(magnitude, F::load_words(PLACES.as_ptr().add(at).cast())));
                for largest in &mut largest[n] {
                    let smaller = key.min(*largest);
                    *largest = key.max(*largest);
                    key = smaller;
                }
            }
        }
        let mut places = [[0; ASIDE]; N];
        for i in 0..ASIDE {
            for n in 0..N {
                places[n][i] = take_largest(&mut largest[n]);
            }
        }
        let mut of_chunks = [None; N];
        for n in 0..N {
            let next = *x[n].add(place_of(largest[n][0].largest()));
            if is_finite[n].sum() == 0.0 {
                let (places, next) = (places[n], next.abs());
                of_chunks[n] = Some(Largest { places, next });
            }
        }
        of_chunks
    }
}

/// Takes the largest key out and returns its place.
#[inline(always)]
fn take_largest<F: Simd>(largest: &mut [F; ASIDE + 1]) -> usize {
    let key = largest[0].largest();
    let taken = largest[0].equals(largest[0].constant(key));
    for i in 0..ASIDE {
        largest[i] = F::select(taken, largest[i + 1], largest[i]);
    }
    place_of(key)
}

/// The bits of a float other than its sign.
const MAGNITUDE: u32 = u32::MAX >> 1;

/// The bits of a key that say which element it is of, as what is left to the last one.
const PLACE: u32 = CHUNK as u32 - 1;

/// Those bits of each element.
const PLACES: [u32; CHUNK] = {
    let mut places = [0; CHUNK];
    let mut at = 0;
    while at < CHUNK {
        places[at] = PLACE - at as u32;
        at += 1;
    }
    places
};

/// Which element a key is of.
#[inline(always)]
fn place_of(key: f32) -> usize {
    (PLACE - (key.to_bits() & PLACE)) as usize
}

/// Sets the sums, given those of 16 neighbouring pairs of integers of each run.
///
/// # Safety
/// As for [`quantize_chunk`].
#[inline(always)]
unsafe fn set_sums<V: IntSimd>(pairs: [V; RUNS], to: *mut U8Chunk) {
    // 8 registers of two pairs of each run: those of the first half, then those of the second.
    let pairs = V::transpose(pairs);
    // SAFETY: the caller's promise; a lane for each run.
    unsafe {
        let halves = [sum_of_half(&pairs[..4]), sum_of_half(&pairs[4..])];
        halves[0].add(halves[1]).store((&raw mut (*to).sums[0]).cast());
        halves[0].store((&raw mut (*to).sums[1]).cast());
        halves[1].store((&raw mut (*to).sums[2]).cast());
    }
}

/// The sums of a half of each run.
#[inline(always)]
fn sum_of_half<V: IntSimd>(pairs: &[V]) -> V::Float {
    let total = pairs[0].add16(pairs[1]).add16(pairs[2].add16(pairs[3]));
    // SAFETY: a value is proof of the instruction set.
    let ones = unsafe { V::words(1) };
    total.multiply_pairs(ones).to_floats()
}
