//! RoPE: sines and cosines of angles, and pairs of elements that are rotated by them. All results are the same on any CPU.

use crate::dispatch::kernels;

/// Sines times `magnitude` in place of angles, and cosines times it: within 1e-10 for angles up to a million, and 1e-6 up to 2^31, before they are rounded to f32.
///
/// # Panics
/// If the slices are not of one length.
pub fn sin_cos_in_place(angles: &mut [f32], magnitude: f32, cos: &mut [f32]) {
    assert_eq!(angles.len(), cos.len());
    // SAFETY: both are that long; the kernels were chosen for this CPU.
    unsafe { (kernels().sin_cos_in_place)(angles.as_mut_ptr(), magnitude, cos.as_mut_ptr(), cos.len()) }
}

/// Rotates pairs of neighbours: `(x[2 i] cos[i] - x[2 i + 1] sin[i], x[2 i] sin[i] + x[2 i + 1] cos[i])`.
///
/// # Panics
/// If there is not one sine and one cosine for each pair.
pub fn rotate_pairs(x: &mut [f32], sin: &[f32], cos: &[f32]) {
    assert_pairs(x, sin, cos);
    // SAFETY: there are as many of each; the kernels were chosen for this CPU.
    unsafe { (kernels().rotate_pairs)(x.as_mut_ptr(), sin.as_ptr(), cos.as_ptr(), sin.len()) }
}

/// [`rotate_pairs`] of elements of the first half with those of the second: `x[i]` and `x[n + i]`.
///
/// # Panics
/// If there is not one sine and one cosine for each pair.
pub fn rotate_halves(x: &mut [f32], sin: &[f32], cos: &[f32]) {
    assert_pairs(x, sin, cos);
    // SAFETY: there are as many of each; the kernels were chosen for this CPU.
    unsafe { (kernels().rotate_halves)(x.as_mut_ptr(), sin.as_ptr(), cos.as_ptr(), sin.len()) }
}

fn assert_pairs(x: &[f32], sin: &[f32], cos: &[f32]) {
    assert_eq!((x.len(), sin.len()), (2 * sin.len(), cos.len()));
}
