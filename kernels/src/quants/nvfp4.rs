//! NVFP4: 64 floats of 4 bits (E2M1) in 4 groups of 16, each with a scale of 8 bits (unsigned E4M3).

use std::mem::offset_of;

use super::Block;
use super::mxfp4::{FLOATS, SHIFTED, VALUES, ZERO};
use crate::GgmlType;
use crate::generic::blocks::{Decode, Sink};
use crate::generic::interleaved8::{GroupScales, UnpackGroup, block_of_run, bytes_of_group, word_of_group};
use crate::generic::integers::{Scales, Unpack};
use crate::interleaved::{Field, Interleaved, Unit, field};
use crate::simd::{IntSimd, Simd};

/// A value of group `g` is `d[g] / 2 * VALUES[q]` with the doubled table of [`BlockMXFP4`](super::BlockMXFP4). Of the 8 bytes of a group,
/// byte `j` holds the q of values `j` (low) and `j + 8` (high).
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct BlockNVFP4 {
    d: [u8; 4],
    qs: [[u8; 8]; 4],
}
const _: () = assert!(size_of::<BlockNVFP4>() == 36);

impl Block for BlockNVFP4 {
    const TYPE: GgmlType = GgmlType::NVFP4;

    fn dequantize(&self, out: &mut [f32]) {
        for ((group, qs), &d) in out.chunks_exact_mut(16).zip(&self.qs).zip(&self.d) {
            let d = half_scale(d);
            let (low, high) = group.split_at_mut(8);
            for j in 0..8 {
                low[j] = f32::from(VALUES[usize::from(qs[j] & 15)]) * d;
                high[j] = f32::from(VALUES[usize::from(qs[j] >> 4)]) * d;
            }
        }
    }
}

/// Half the value of a scale: 4 bits of exponent (bias 7), 3 of mantissa, no sign. The format's NaN counts as zero.
#[inline(always)]
fn half_scale(d: u8) -> f32 {
    // As the bits of an f32 a scale is too small by 2^120, the difference of the exponents' biases, even if it is subnormal.
    let scale = f32::from_bits(u32::from(d & 0x7f) << 20) * f32::from_bits((127 + 119) << 23);
    if d == 0x7f { 0.0 } else { scale }
}

/// [`half_scale`] of each lane.
#[inline(always)]
fn half_scales<V: Simd>(d: V::Int) -> V {
    let d = V::and(d, 0x7f);
    let scale = V::from_bits(V::shl(d, 20));
    let scale = scale.mul(scale.constant(f32::from_bits((127 + 119) << 23)));
    // 0x7f is the NaN, and the only scale of 7 bits that has bit 7 set once 1 is added.
    V::select(V::has_bit(V::plus_one(d), 0x80), scale.constant(0.0), scale)
}

impl<V: Simd> Decode<V> for BlockNVFP4 {
    #[inline(always)]
    unsafe fn decode<S: Sink<V>>(p: *const u8, sink: &mut S) {
        const NIBBLES: u64 = 0x0f0f_0f0f_0f0f_0f0f;
        // SAFETY: the caller's promise; blocks have alignment 1. A register holds one half of a group or both.
        unsafe {
            let block = &*p.cast::<Self>();
            for g in 0..4 {
                let table = V::table(&FLOATS, V::splat(half_scale(block.d[g])));
                let q = u64::from_le_bytes(block.qs[g]);
                let halves = [q & NIBBLES, q >> 4 & NIBBLES];
                for at in (0..16).step_by(V::LANES) {
                    let q = V::bytes([halves[at / 8], halves[at / 8 + V::LANES / 8 - 1]]);
                    sink.put(g * 16 + at, V::lookup(table, q));
                }
            }
        }
    }
}

impl<V: IntSimd> Unpack<V> for BlockNVFP4 {
    const BITS: u32 = 5;
    const BY_16: bool = true;
    const ZERO: u8 = ZERO;

    #[inline(always)]
    unsafe fn scales(p: *const u8, runs: usize, to: &mut Scales) {
        for i in 0..runs {
            // SAFETY: the caller's promise; blocks have alignment 1 and two runs each.
            let d = unsafe { (*p.cast::<Self>().add(i / 2)).d };
            for second in 0..2 {
                let scale = half_scale(d[i % 2 * 2 + second]);
                to.scales[second][i] = scale;
                to.mins[second][i] = scale * -f32::from(ZERO);
            }
        }
    }

    #[inline(always)]
    unsafe fn values(p: *const u8, i: usize) -> V {
        // SAFETY: the caller's promise; offsets are those of the block.
        unsafe {
            let qs = p.add(i / 2 * size_of::<Self>() + offset_of!(Self, qs));
            V::load_nibbles_by_8(qs.add(i % 2 * 16)).lookup(&SHIFTED)
        }
    }
}

impl Interleaved for BlockNVFP4 {
    const FIELDS: &'static [Field] = &[field(4, Unit::One), field(32, Unit::Four)];
}

impl<V: IntSimd> UnpackGroup<V> for BlockNVFP4 {
    #[inline(always)]
    unsafe fn group_scales(p: *const u8, runs: usize, to: *mut GroupScales) {
        for half in 0..2 * runs {
            // SAFETY: the caller's promise: there is a block for every two runs.
            unsafe {
                let block = block_of_run::<Self>(p, half / 2);
                GroupScales::set(
                    to,
                    half,
                    half_scales::<V::Float>(bytes_of_group::<V::Float>(block, half % 4)),
                );
            }
        }
    }

    #[inline(always)]
    unsafe fn group_values(p: *const u8, i: usize, j: usize) -> V {
        // SAFETY: the caller's promise; offsets are those of the block.
        unsafe {
            let block = block_of_run::<Self>(p, i);
            let both: V = word_of_group(block, offset_of!(Self, qs) + i % 2 * 16 + j / 4 * 8 + j % 2 * 4);
            let nibbles = if j % 4 < 2 { both } else { both.shr(4) };
            nibbles.and(V::splat(15)).lookup(&SHIFTED)
        }
    }
}
