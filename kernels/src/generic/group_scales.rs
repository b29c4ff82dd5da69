//! Scales and minimums of a row group, decoded once per chunk.

use super::pack::{HALVES, LANES};
use crate::simd::Simd;

/// Scales and minimums of a chunk of a row group, with one lane per row. The first index is the half run if
/// the type is [`BY_16`](super::integers::Unpack::BY_16), otherwise the run.
#[repr(C, align(64))]
pub(crate) struct GroupScales {
    pub scales: [[f32; LANES]; HALVES],
    /// Unset for types whose only minimum is the one implied by [`ZERO`](super::integers::Unpack::ZERO).
    pub mins: [[f32; LANES]; HALVES],
}

impl GroupScales {
    /// Stores scale `i`.
    ///
    /// # Safety
    /// The CPU supports `V`, `to` is valid for writes, and `i < HALVES`.
    #[inline(always)]
    pub(crate) unsafe fn set<V: Simd>(to: *mut GroupScales, i: usize, scale: V) {
        // SAFETY: `scales[i]` has exactly 8 floats, and `to` is valid for writes (function contract).
        unsafe { scale.store((&raw mut (*to).scales[i]).cast()) }
    }

    /// Stores minimum `i`.
    ///
    /// # Safety
    /// The CPU supports `V`, `to` is valid for writes, and `i < HALVES`.
    #[inline(always)]
    pub(crate) unsafe fn set_min<V: Simd>(to: *mut GroupScales, i: usize, min: V) {
        // SAFETY: `mins[i]` has exactly 8 floats, and `to` is valid for writes (function contract).
        unsafe { min.store((&raw mut (*to).mins[i]).cast()) }
    }

    /// Loads scale `i`.
    ///
    /// # Safety
    /// The CPU supports `V`, and scale `i` was stored by [`set`](GroupScales::set).
    #[inline(always)]
    pub(super) unsafe fn scale<V: Simd>(from: *const GroupScales, i: usize) -> V {
        // SAFETY: `scales[i]` is initialized (function contract) and has exactly 8 floats.
        unsafe { V::load((&raw const (*from).scales[i]).cast()) }
    }

    /// Loads minimum `i`.
    ///
    /// # Safety
    /// The CPU supports `V`, and minimum `i` was stored by [`set_min`](GroupScales::set_min).
    #[inline(always)]
    pub(super) unsafe fn min<V: Simd>(from: *const GroupScales, i: usize) -> V {
        // SAFETY: `mins[i]` is initialized (function contract) and has exactly 8 floats.
        unsafe { V::load((&raw const (*from).mins[i]).cast()) }
    }
}
