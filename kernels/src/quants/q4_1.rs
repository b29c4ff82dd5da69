//! Q4_1: 32 4-bit values with a scale and a minimum.

use std::mem::offset_of;

use super::fit::{best_line, inverse, round_to};
use crate::GgmlType;
use crate::layout::assemble::FromLine;
use crate::layout::block::{Block, Half, Quantize};
use crate::layout::decode::{Decode, Encode, Sink};
use crate::layout::groups::{
    Field, GroupScales, Interleaved, Unit, UnpackGroup, block_at_run, field, group_nibbles, load_group_f16,
};
use crate::layout::runs::{Scales, Unpack, load_block_f16};
use crate::simd::{IntSimd, Simd};

/// A block of 32 values: value `j` is `d * q + m`. Byte `j` holds `q` of values `j` (low nibble) and `j + 16`
/// (high nibble).
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct BlockQ4_1 {
    d: Half,
    m: Half,
    qs: [u8; 16],
}
const _: () = assert!(size_of::<BlockQ4_1>() == 20);

impl Block for BlockQ4_1 {
    const TYPE: GgmlType = GgmlType::Q4_1;

    fn dequantize(&self, out: &mut [f32]) {
        let (d, m) = (self.d.get(), self.m.get());
        let (low, high) = out.split_at_mut(16);
        for j in 0..16 {
            low[j] = f32::from(self.qs[j] & 15) * d + m;
            high[j] = f32::from(self.qs[j] >> 4) * d + m;
        }
    }
}

impl FromLine for BlockQ4_1 {
    fn from_line(d: Half, m: Half, q: &[u8]) -> Self {
        BlockQ4_1 {
            d,
            m,
            qs: std::array::from_fn(|j| q[j] | q[j + 16] << 4),
        }
    }
}

impl<V: Simd> Decode<V> for BlockQ4_1 {
    #[inline(always)]
    unsafe fn decode<S: Sink<V>>(p: *const u8, sink: &mut S) {
        // SAFETY: `p` is valid for a block (trait contract), and all offsets are within it.
        unsafe {
            let line = V::line(V::splat_f16(p), V::splat_f16(p.add(offset_of!(Self, m))));
            for at in (0..16).step_by(V::LANES) {
                let q = V::load_u8(p.add(offset_of!(Self, qs) + at));
                sink.put(at, V::low4(line, q));
                sink.put(at + 16, V::high4(line, q));
            }
        }
    }
}

impl<V: IntSimd> Unpack<V> for BlockQ4_1 {
    const BITS: u32 = 4;

    #[inline(always)]
    unsafe fn scales(p: *const u8, runs: usize, to: &mut Scales) {
        // SAFETY: `p` is valid for the chunk's blocks (trait contract), and all offsets are within a block.
        unsafe {
            load_block_f16::<V, Self>(p, 0, runs).store(to.scales[0].as_mut_ptr());
            load_block_f16::<V, Self>(p, offset_of!(Self, m), runs).store(to.mins[0].as_mut_ptr());
        }
    }

    #[inline(always)]
    unsafe fn values(p: *const u8, i: usize) -> V {
        // SAFETY: `p` is valid for the block of run `i` (trait contract), and all offsets are within it.
        unsafe { V::load_nibbles(p.add(i * size_of::<Self>() + offset_of!(Self, qs))) }
    }
}

impl Interleaved for BlockQ4_1 {
    const FIELDS: &'static [Field] = &[field(2, Unit::Two), field(2, Unit::Two), field(16, Unit::Four)];
}

impl<V: IntSimd> UnpackGroup<V> for BlockQ4_1 {
    #[inline(always)]
    unsafe fn group_scales(p: *const u8, runs: usize, to: *mut GroupScales) {
        for i in 0..runs {
            // SAFETY: `p` is valid for the chunk's blocks of a row group (trait contract), and all offsets
            // are within a block.
            unsafe {
                let p = block_at_run::<Self>(p, i);
                GroupScales::set(to, i, load_group_f16::<V::Float>(p, 0));
                GroupScales::set_min(to, i, load_group_f16::<V::Float>(p, offset_of!(Self, m)));
            }
        }
    }

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

impl Quantize for BlockQ4_1 {
    fn quantize(x: &[f32]) -> Self {
        let (d, m) = best_line(x, 15.0);
        let (d, m) = (Half::new(d), Half::new(m));
        let (inv, base) = (inverse(d.get()), m.get());
        let q = |v: f32| round_to((v - base) * inv, 15.0);
        BlockQ4_1 {
            d,
            m,
            qs: std::array::from_fn(|j| q(x[j]) | q(x[j + 16]) << 4),
        }
    }
}

impl<V: Simd> Encode<V> for BlockQ4_1 {}
