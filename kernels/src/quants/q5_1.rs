//! Q5_1: 32 5-bit values with a scale and a minimum.

use std::mem::offset_of;

use super::fit::{best_line, inverse, round_to};
use super::q5_0::{five_bits, group_five_bits, join, split};
use crate::GgmlType;
use crate::layout::assemble::FromLine;
use crate::layout::block::{Block, Half, Quantize};
use crate::layout::decode::{Decode, Encode, Sink};
use crate::layout::groups::{Field, GroupScales, Interleaved, Unit, UnpackGroup, block_at_run, field, load_group_f16};
use crate::layout::runs::{Scales, Unpack, load_block_f16};
use crate::simd::{IntSimd, Simd};

/// A block of 32 values: value `j` is `d * q + m`, with the bits of `q` stored as in
/// [`BlockQ5_0`](super::BlockQ5_0).
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct BlockQ5_1 {
    d: Half,
    m: Half,
    qh: [u8; 4],
    qs: [u8; 16],
}
const _: () = assert!(size_of::<BlockQ5_1>() == 24);

impl Block for BlockQ5_1 {
    const TYPE: GgmlType = GgmlType::Q5_1;

    fn dequantize(&self, out: &mut [f32]) {
        let (d, m) = (self.d.get(), self.m.get());
        for (v, q) in out.iter_mut().zip(join(&self.qh, &self.qs)) {
            *v = f32::from(q) * d + m;
        }
    }
}

impl FromLine for BlockQ5_1 {
    #[inline]
    fn from_line(d: Half, m: Half, q: &[u8]) -> Self {
        let (qh, qs) = split(|j| q[j]);
        BlockQ5_1 { d, m, qh, qs }
    }
}

impl<V: Simd> Decode<V> for BlockQ5_1 {
    #[inline(always)]
    unsafe fn decode<S: Sink<V>>(p: *const u8, sink: &mut S) {
        // SAFETY: `p` is valid for a block (trait contract), and all offsets are within it.
        unsafe {
            let line = V::line(V::splat_f16(p), V::splat_f16(p.add(offset_of!(Self, m))));
            let fifth = p.add(offset_of!(Self, qh)).cast::<u32>().read_unaligned().to_le();
            for at in (0..16).step_by(V::LANES) {
                let q = V::load_u8(p.add(offset_of!(Self, qs) + at));
                sink.put(at, V::low5(line, q, V::mask(fifth, at)));
                sink.put(at + 16, V::high5(line, q, V::mask(fifth, at + 16)));
            }
        }
    }
}

impl<V: IntSimd> Unpack<V> for BlockQ5_1 {
    const BITS: u32 = 5;

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
        unsafe {
            let p = p.add(i * size_of::<Self>());
            five_bits(p.add(offset_of!(Self, qh)), p.add(offset_of!(Self, qs)))
        }
    }
}

impl Interleaved for BlockQ5_1 {
    const FIELDS: &'static [Field] = &[
        field(2, Unit::Two),
        field(2, Unit::Two),
        field(4, Unit::Bits),
        field(16, Unit::Four),
    ];
}

impl<V: IntSimd> UnpackGroup<V> for BlockQ5_1 {
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
            group_five_bits(p, offset_of!(Self, qh), offset_of!(Self, qs), j)
        }
    }
}

impl Quantize for BlockQ5_1 {
    fn quantize(x: &[f32]) -> Self {
        let (d, m) = best_line(x, 31.0);
        let (d, m) = (Half::new(d), Half::new(m));
        let (inv, base) = (inverse(d.get()), m.get());
        let (qh, qs) = split(|j| round_to((x[j] - base) * inv, 31.0));
        BlockQ5_1 { d, m, qh, qs }
    }
}

impl<V: Simd> Encode<V> for BlockQ5_1 {}
