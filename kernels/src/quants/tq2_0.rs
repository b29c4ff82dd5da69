//! TQ2_0: 256 2-bit values around 1, with one scale.

use std::mem::offset_of;

use super::q2_k::bit_pairs;
use crate::GgmlType;
use crate::layout::assemble::FromScale;
use crate::layout::block::{Block, Half};
use crate::layout::decode::{Decode, Sink};
use crate::layout::groups::{
    Field, GroupScales, Interleaved, Unit, UnpackGroup, field, group_bit_pairs, set_group_scales,
};
use crate::layout::runs::{Scales, Unpack, set_scales};
use crate::simd::{IntSimd, Simd};

/// A block of 256 values `d * (q - 1)`, with the bits of `q` stored as in [`BlockQ2K`](super::BlockQ2K).
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct BlockTQ2_0 {
    qs: [u8; 64],
    d: Half,
}
const _: () = assert!(size_of::<BlockTQ2_0>() == 66);

impl Block for BlockTQ2_0 {
    const TYPE: GgmlType = GgmlType::TQ2_0;

    fn dequantize(&self, out: &mut [f32]) {
        let d = self.d.get();
        for (i, values) in out.chunks_exact_mut(32).enumerate() {
            for (v, q) in values.iter_mut().zip(&self.qs[i / 4 * 32..]) {
                *v = (f32::from(q >> (i % 4 * 2) & 3) - 1.0) * d;
            }
        }
    }
}

impl FromScale for BlockTQ2_0 {
    fn from_scale(d: Half, q: &[u8]) -> Self {
        BlockTQ2_0 {
            qs: std::array::from_fn(|i| {
                let first = i / 32 * 128 + i % 32;
                (0..4).fold(0, |byte, j| byte | q[first + 32 * j] << (2 * j))
            }),
            d,
        }
    }
}

impl<V: Simd> Decode<V> for BlockTQ2_0 {
    #[inline(always)]
    unsafe fn decode<S: Sink<V>>(p: *const u8, sink: &mut S) {
        // SAFETY: `p` is valid for a block (trait contract), and all offsets are within it.
        unsafe {
            let d = V::splat_f16(p.add(offset_of!(Self, d)));
            for at in (0..64).step_by(V::LANES) {
                let q = V::load_u8(p.add(offset_of!(Self, qs) + at));
                for j in 0..4 {
                    let q = V::from_int(V::and(V::shr(q, 2 * j as u32), 3));
                    sink.put(at / 32 * 128 + j * 32 + at % 32, q.sub(V::splat(1.0)).mul(d));
                }
            }
        }
    }
}

impl<V: IntSimd> Unpack<V> for BlockTQ2_0 {
    const BITS: u32 = 2;
    const ZERO: u8 = 1;

    #[inline(always)]
    unsafe fn scales(p: *const u8, _: usize, to: &mut Scales) {
        // SAFETY: `p` is valid for the chunk's blocks (trait contract), and all offsets are within a block.
        unsafe { set_scales(V::Float::splat_f16(p.add(offset_of!(Self, d))), 1.0, to) }
    }

    #[inline(always)]
    unsafe fn values(p: *const u8, i: usize) -> V {
        // SAFETY: `p` is valid for the block of run `i` (trait contract), and all offsets are within it.
        unsafe { bit_pairs(p.add(offset_of!(Self, qs)), i) }
    }
}

impl Interleaved for BlockTQ2_0 {
    const FIELDS: &'static [Field] = &[field(64, Unit::Runs { bits: 2 }), field(2, Unit::Two)];
}

impl<V: IntSimd> UnpackGroup<V> for BlockTQ2_0 {
    #[inline(always)]
    unsafe fn group_scales(p: *const u8, runs: usize, to: *mut GroupScales) {
        // SAFETY: `p` is valid for the chunk's blocks of a row group (trait contract), and all offsets are
        // within a block.
        unsafe { set_group_scales::<V::Float, Self>(p, offset_of!(Self, d), runs, to) }
    }

    #[inline(always)]
    unsafe fn group_values(p: *const u8, i: usize, j: usize) -> V {
        // SAFETY: `p` is valid for the row group's block of run `i` (trait contract), and all offsets are
        // within it.
        unsafe { group_bit_pairs(p, offset_of!(Self, qs) + i * 8, j) }
    }
}
