//! Q1_0: 128 signs, one scale.

use std::mem::offset_of;

use super::{Block, Half};
use crate::GgmlType;
use crate::generic::blocks::{Decode, Sink};
use crate::generic::interleaved8::{GroupScales, UnpackGroup, block_of_run, set_group_scales, word_of_group};
use crate::generic::integers::{Scales, Unpack, halves_of_blocks, move_bits, set_scales};
use crate::interleaved::{Field, Interleaved, Unit, field};
use crate::simd::{IntSimd, Simd};

/// Value `j` is `d` where bit `j % 8` of byte `j / 8` is set, else `-d`.
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct BlockQ1_0 {
    d: Half,
    qs: [[u8; 4]; 4],
}
const _: () = assert!(size_of::<BlockQ1_0>() == 18);

impl Block for BlockQ1_0 {
    const TYPE: GgmlType = GgmlType::Q1_0;

    fn dequantize(&self, out: &mut [f32]) {
        let d = self.d.get();
        for (j, v) in out.iter_mut().enumerate() {
            *v = if self.qs[j / 32][j / 8 % 4] >> (j % 8) & 1 != 0 {
                d
            } else {
                -d
            };
        }
    }
}

impl<V: Simd> Decode<V> for BlockQ1_0 {
    #[inline(always)]
    unsafe fn decode<S: Sink<V>>(p: *const u8, sink: &mut S) {
        // SAFETY: the caller's promise; blocks have alignment 1.
        unsafe {
            let d = V::splat_f16(p);
            for (i, bits) in (*p.cast::<Self>()).qs.into_iter().enumerate() {
                let negative = !u32::from_le_bytes(bits);
                for at in (0..32).step_by(V::LANES) {
                    sink.put(i * 32 + at, d.negate_where(V::mask(negative, at)));
                }
            }
        }
    }
}

impl<V: IntSimd> Unpack<V> for BlockQ1_0 {
    const BITS: u32 = 2;
    const ZERO: u8 = 1;

    #[inline(always)]
    unsafe fn scales(p: *const u8, runs: usize, to: &mut Scales) {
        // SAFETY: the caller's promise.
        unsafe { set_scales(halves_of_blocks::<V, Self>(p, 0, runs), 1.0, to) }
    }

    #[inline(always)]
    unsafe fn values(p: *const u8, i: usize) -> V {
        // SAFETY: the caller's promise; blocks have alignment 1.
        unsafe {
            // 2 where the bit is set, else 0.
            let bits = u32::from_le_bytes((*p.cast::<Self>().add(i / 4)).qs[i % 4]);
            V::from_bits(bits).and(V::splat(2))
        }
    }
}

impl Interleaved for BlockQ1_0 {
    const FIELDS: &'static [Field] = &[field(2, Unit::Two), field(16, Unit::Bits)];
}

impl<V: IntSimd> UnpackGroup<V> for BlockQ1_0 {
    #[inline(always)]
    unsafe fn group_scales(p: *const u8, runs: usize, to: *mut GroupScales) {
        // SAFETY: the caller's promise.
        unsafe { set_group_scales::<V::Float, Self>(p, offset_of!(Self, d), runs, to) }
    }

    #[inline(always)]
    unsafe fn group_values(p: *const u8, i: usize, j: usize) -> V {
        // SAFETY: the caller's promise; offsets are those of the block.
        unsafe {
            let block = block_of_run::<Self>(p, i);
            let bits: V = word_of_group(block, offset_of!(Self, qs) + i % 4 * 4);
            move_bits(bits, j, 1).and(V::splat(2))
        }
    }
}
