//! Q4_0: 32 4-bit values around 8, with one scale.

use std::mem::offset_of;

use super::fit::{best_scale, inverse, round_to};
use crate::GgmlType;
use crate::layout::assemble::FromScale;
use crate::layout::block::{Block, Half, Quantize};
use crate::layout::decode::{Decode, Encode, Sink};
use crate::layout::groups::{Field, Interleaved, Unit, UnpackGroup, block_at_run, field, group_nibbles};
use crate::layout::runs::Unpack;
use crate::simd::{IntSimd, Simd};

/// A block of 32 values: value `j` is `d * (q - 8)`. Byte `j` holds `q` of values `j` (low nibble) and `j +
/// 16` (high nibble).
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct BlockQ4_0 {
    d: Half,
    qs: [u8; 16],
}
const _: () = assert!(size_of::<BlockQ4_0>() == 18);

impl Block for BlockQ4_0 {
    const TYPE: GgmlType = GgmlType::Q4_0;

    fn dequantize(&self, out: &mut [f32]) {
        let d = self.d.get();
        let (low, high) = out.split_at_mut(16);
        for j in 0..16 {
            low[j] = (i32::from(self.qs[j] & 15) - 8) as f32 * d;
            high[j] = (i32::from(self.qs[j] >> 4) - 8) as f32 * d;
        }
    }
}

impl FromScale for BlockQ4_0 {
    fn from_scale(d: Half, q: &[u8]) -> Self {
        BlockQ4_0 {
            d,
            qs: std::array::from_fn(|j| q[j] | q[j + 16] << 4),
        }
    }
}

impl<V: Simd> Decode<V> for BlockQ4_0 {
    #[inline(always)]
    unsafe fn decode<S: Sink<V>>(p: *const u8, sink: &mut S) {
        // SAFETY: `p` is valid for a block (trait contract), and all offsets are within it.
        unsafe {
            let d = V::splat_f16(p);
            let line = V::line(d, d.mul(V::splat(-8.0)));
            for at in (0..16).step_by(V::LANES) {
                let q = V::load_u8(p.add(offset_of!(Self, qs) + at));
                sink.put(at, V::low4(line, q));
                sink.put(at + 16, V::high4(line, q));
            }
        }
    }
}

impl<V: IntSimd> Unpack<V> for BlockQ4_0 {
    const BITS: u32 = 4;
    const ZERO: u8 = 8;

    #[inline(always)]
    unsafe fn values(p: *const u8, i: usize) -> V {
        // SAFETY: `p` is valid for the block of run `i` (trait contract), and all offsets are within it.
        unsafe { V::load_nibbles(p.add(i * size_of::<Self>() + offset_of!(Self, qs))) }
    }
}

impl Interleaved for BlockQ4_0 {
    const FIELDS: &'static [Field] = &[field(2, Unit::Two), field(16, Unit::Four)];
}

impl<V: IntSimd> UnpackGroup<V> for BlockQ4_0 {
    #[inline(always)]
    unsafe fn group_values(p: *const u8, i: usize, j: usize) -> V {
        // SAFETY: `p` is valid for the row group's block of run `i` (trait contract), and all offsets are
        // within it.
        unsafe {
            let p = block_at_run::<Self>(p, i);
            group_nibbles::<V>(p, offset_of!(Self, qs), j)
        }
    }
}

impl Quantize for BlockQ4_0 {
    fn quantize(x: &[f32]) -> Self {
        // The range is -8..=7, so the largest element usually belongs on the negative side, which reaches
        // further.
        let ends = [-8.75, -8.5, -8.25, -8.0, -7.75, -7.5, -7.25, -7.0, 7.0, 7.5].into_iter();
        let d = Half::new(best_scale(x, ends, |v| v.round_ties_even().clamp(-8.0, 7.0)));
        let inv = inverse(d.get());
        let q = |v: f32| round_to(v * inv + 8.0, 15.0);
        BlockQ4_0 {
            d,
            qs: std::array::from_fn(|j| q(x[j]) | q(x[j + 16]) << 4),
        }
    }
}

impl<V: Simd> Encode<V> for BlockQ4_0 {}
