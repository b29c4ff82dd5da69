//! Rotary position embeddings (RoPE): sines and cosines of angles, and the rotation of pairs of elements.
//! Results are the same on every CPU.

use crate::dispatch::kernels;

/// Replaces angles by their sines times `magnitude`, and writes the cosines times `magnitude`. Before
/// rounding to f32, the error is at most 1e-10 for angles up to 10^6, and 1e-6 up to 2^31.
///
/// # Panics
/// Panics if the slices differ in length.
pub fn sin_cos_in_place(angles: &mut [f32], magnitude: f32, cos: &mut [f32]) {
    assert_eq!(angles.len(), cos.len());
    // SAFETY: both slices have `cos.len()` floats; `kernels()` matches this CPU.
    unsafe { (kernels().sin_cos_in_place)(angles.as_mut_ptr(), magnitude, cos.as_mut_ptr(), cos.len()) }
}

/// Rotates adjacent pairs: `(x[2 i] * cos[i] - x[2 i + 1] * sin[i], x[2 i] * sin[i] + x[2 i + 1] * cos[i])`.
///
/// # Panics
/// Panics if there is not exactly one sine and cosine per pair.
pub fn rotate_pairs(x: &mut [f32], sin: &[f32], cos: &[f32]) {
    assert_pairs(x, sin, cos);
    // SAFETY: `assert_pairs` checked the lengths; `kernels()` matches this CPU.
    unsafe { (kernels().rotate_pairs)(x.as_mut_ptr(), sin.as_ptr(), cos.as_ptr(), sin.len()) }
}

/// Rotates pairs of elements from the two halves, `x[i]` and `x[n + i]`, like [`rotate_pairs`].
///
/// # Panics
/// Panics if there is not exactly one sine and cosine per pair.
pub fn rotate_halves(x: &mut [f32], sin: &[f32], cos: &[f32]) {
    assert_pairs(x, sin, cos);
    // SAFETY: `assert_pairs` checked the lengths; `kernels()` matches this CPU.
    unsafe { (kernels().rotate_halves)(x.as_mut_ptr(), sin.as_ptr(), cos.as_ptr(), sin.len()) }
}

fn assert_pairs(x: &[f32], sin: &[f32], cos: &[f32]) {
    assert_eq!((x.len(), sin.len()), (2 * sin.len(), cos.len()));
}
