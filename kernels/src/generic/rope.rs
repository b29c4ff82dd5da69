//! Rotary position embeddings: sines and cosines of angles, and the rotation of pairs of elements.
//!
//! ```text
//! (a, b) -> (a * cos - b * sin, a * sin + b * cos)
//!
//! rotate_pairs:   (x0 x1) (x2 x3) ..                    # adjacent elements
//! rotate_halves:  (x0 xn) (x1 xn+1) ..                  # an element of each half
//!
//! sin_cos(x):  q = round(x / (pi / 2))                  # quadrant
//!              r = x - q * pi / 2                       # pi / 2 in two parts
//!              sin r, cos r by Taylor series; swap and negate by quadrant
//! ```
//!
//! The loops are scalar code that compilers vectorize.
//!
//! # Safety
//! All functions require that the CPU supports `V` and that pointers are valid for the documented number of
//! floats.

use std::f64::consts::FRAC_2_PI;

use crate::simd::Simd;

/// Replaces `n` angles by their sines times `magnitude`, and writes their cosines times `magnitude`.
#[inline(always)]
pub(crate) unsafe fn sin_cos_in_place<V: Simd>(angles: *mut f32, magnitude: f32, cos: *mut f32, n: usize) {
    for i in 0..n {
        // SAFETY: `i < n`, and both arrays have `n` floats (module contract).
        unsafe {
            let (sin_of, cos_of) = sin_cos(f64::from(*angles.add(i)));
            *angles.add(i) = sin_of as f32 * magnitude;
            *cos.add(i) = cos_of as f32 * magnitude;
        }
    }
}

/// Rotates `n` pairs of adjacent elements, `x[2 i]` and `x[2 i + 1]`.
#[inline(always)]
pub(crate) unsafe fn rotate_pairs<V: Simd>(x: *mut f32, sin: *const f32, cos: *const f32, n: usize) {
    for i in 0..n {
        // SAFETY: `i < n`; `x` has `2 n` floats, `sin` and `cos` have `n` (module contract).
        unsafe {
            let (a, b, s, c) = (*x.add(2 * i), *x.add(2 * i + 1), *sin.add(i), *cos.add(i));
            *x.add(2 * i) = a * c - b * s;
            *x.add(2 * i + 1) = a * s + b * c;
        }
    }
}

/// Rotates `n` pairs of elements from the two halves, `x[i]` and `x[n + i]`.
#[inline(always)]
pub(crate) unsafe fn rotate_halves<V: Simd>(x: *mut f32, sin: *const f32, cos: *const f32, n: usize) {
    for i in 0..n {
        // SAFETY: `i < n`; `x` has `2 n` floats, `sin` and `cos` have `n` (module contract).
        unsafe {
            let (a, b, s, c) = (*x.add(i), *x.add(n + i), *sin.add(i), *cos.add(i));
            *x.add(i) = a * c - b * s;
            *x.add(n + i) = a * s + b * c;
        }
    }
}

/// Returns the sine and cosine of `x`. The error is at most 1e-10 for angles up to 10^6, and 1e-6 up to 2^31. The code
/// is branch-free, so compilers can vectorize it.
#[inline(always)]
pub(crate) fn sin_cos(x: f64) -> (f64, f64) {
    // Adding this constant (1.5 * 2^52) rounds to an integer, which then occupies the lowest bits of the
    // mantissa.
    const ROUND: f64 = 6_755_399_441_055_744.0;
    // pi / 2 in two parts. The first has 33 bits, so its product with up to 2^20 quadrants is exact.
    const QUARTER: f64 = 1.570_796_326_734_125_6;
    const QUARTER_REST: f64 = 6.077_100_506_506_192e-11;
    let rounded = x * FRAC_2_PI + ROUND;
    let (quarters, turn) = (rounded - ROUND, rounded.to_bits());
    let r = (x - quarters * QUARTER) - quarters * QUARTER_REST;
    let r2 = r * r;
    // Taylor series on [-pi / 4, pi / 4].
    let s = -1.0 / 39_916_800.0;
    let s = s * r2 + 1.0 / 362_880.0;
    let s = s * r2 - 1.0 / 5040.0;
    let s = s * r2 + 1.0 / 120.0;
    let s = s * r2 - 1.0 / 6.0;
    let s = r + r * r2 * s;
    let c = 1.0 / 479_001_600.0;
    let c = c * r2 - 1.0 / 3_628_800.0;
    let c = c * r2 + 1.0 / 40_320.0;
    let c = c * r2 - 1.0 / 720.0;
    let c = c * r2 + 1.0 / 24.0;
    let c = 1.0 - 0.5 * r2 + r2 * r2 * c;
    // Odd quadrants swap sine and cosine. Quadrants 2 and 3 negate the sine, 1 and 2 the cosine.
    let swapped = turn & 1 == 1;
    let (sin, cos) = if swapped { (c, s) } else { (s, c) };
    let sin_sign = (turn & 2) << 62;
    let cos_sign = (turn.wrapping_add(1) & 2) << 62;
    (
        f64::from_bits(sin.to_bits() ^ sin_sign),
        f64::from_bits(cos.to_bits() ^ cos_sign),
    )
}
