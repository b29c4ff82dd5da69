//! NVFP4: 64 4-bit floats (E2M1) in 4 groups of 16, each with an 8-bit scale (unsigned E4M3).

use std::mem::offset_of;

use super::mxfp4::{FLOATS, SHIFTED, VALUES, ZERO};
use crate::GgmlType;
use crate::layout::block::Block;
use crate::layout::decode::{Decode, Sink};
use crate::layout::groups::{
    Field, GroupScales, Interleaved, Unit, UnpackGroup, block_at_run, field, group_word, load_group_bytes,
};
use crate::layout::runs::{Scales, Unpack};
use crate::simd::{IntSimd, Simd};

/// A block of 64 values: a value of group `g` is `d[g] / 2 * VALUES[q]`, with the doubled table of
/// [`BlockMXFP4`](super::BlockMXFP4). Byte `j` of a group holds `q` of values `j` (low nibble) and `j + 8`
/// (high nibble).
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

/// Returns half the value of an E4M3 scale: 4 exponent bits (bias 7) and 3 mantissa bits. The sign bit is ignored, and
/// NaN is treated as zero.
#[inline(always)]
fn half_scale(d: u8) -> f32 {
    // Interpreted as f32 bits, a scale is too small by the factor 2^120, the difference of the exponent
    // biases. This also holds for subnormal scales.
    let d = d & 0x7f;
    let scale = f32::from_bits(u32::from(d) << 20) * f32::from_bits((127 + 119) << 23);
    if d == 0x7f { 0.0 } else { scale }
}

/// Returns [`half_scale`] of each lane.
#[inline(always)]
fn half_scales<V: Simd>(d: V::Int) -> V {
    let d = V::and(d, 0x7f);
    let scale = V::from_bits(V::shl(d, 20));
    let scale = scale.mul(scale.constant(f32::from_bits((127 + 119) << 23)));
    // NaN is 0x7f, the only 7-bit scale for which adding 1 sets bit 7.
    V::select(V::has_bit(V::plus_one(d), 0x80), scale.constant(0.0), scale)
}

impl BlockNVFP4 {
    /// Returns half the scale with this code.
    pub(crate) fn half_scale_of(d: u8) -> f32 {
        half_scale(d)
    }

    /// Returns the code of the scale that maps this magnitude to about 6, the largest E2M1 value.
    pub(crate) fn code_of_largest(magnitude: f32) -> i32 {
        // The inverse of the arithmetic in `half_scale`, rounded to the nearest code.
        let scale = magnitude.min(448.0 * 6.0) * (0.5 / 6.0);
        let bits = (scale * f32::from_bits((127 - 119) << 23)).to_bits();
        ((bits + (1 << 19)) >> 20) as i32
    }

    /// Makes a block from the codes of its scales and the indices of its elements.
    pub(crate) fn from_codes(d: [u8; 4], q: &[u8; 64]) -> Self {
        BlockNVFP4 {
            d,
            qs: std::array::from_fn(|g| std::array::from_fn(|j| q[16 * g + j] | q[16 * g + j + 8] << 4)),
        }
    }
}

impl<V: Simd> Decode<V> for BlockNVFP4 {
    #[inline(always)]
    unsafe fn decode<S: Sink<V>>(p: *const u8, sink: &mut S) {
        const NIBBLES: u64 = 0x0f0f_0f0f_0f0f_0f0f;
        // SAFETY: `p` is valid for a block (trait contract), and all offsets are within it. A register holds
        // one or both halves of a group.
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
            // SAFETY: `p` is valid for the chunk's blocks (trait contract), and all offsets are within a
            // block.
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
        // SAFETY: `p` is valid for the block of run `i` (trait contract), and all offsets are within it.
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
            // SAFETY: `p` is valid for the chunk's blocks of a row group (trait contract), and all offsets
            // are within a block.
            unsafe {
                let block = block_at_run::<Self>(p, half / 2);
                GroupScales::set(
                    to,
                    half,
                    half_scales::<V::Float>(load_group_bytes::<V::Float>(block, half % 4)),
                );
            }
        }
    }

    #[inline(always)]
    unsafe fn group_values(p: *const u8, i: usize, j: usize) -> V {
        // SAFETY: `p` is valid for the row group's block of run `i` (trait contract), and all offsets are
        // within it.
        unsafe {
            let block = block_at_run::<Self>(p, i);
            let both: V = group_word(block, offset_of!(Self, qs) + i % 2 * 16 + j / 4 * 8 + j % 2 * 4);
            let nibbles = if j % 4 < 2 { both } else { both.shr(4) };
            nibbles.and(V::splat(15)).lookup(&SHIFTED)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::portable::Portable;

    #[test]
    fn scales_ignore_the_sign_and_treat_nan_as_zero() {
        for d in 0..=255u8 {
            let magnitude = d & 0x7f;
            let (exponent, mantissa) = (i32::from(magnitude >> 3), f32::from(magnitude & 7));
            let expected = match (exponent, magnitude) {
                (_, 0x7f) => 0.0,
                (0, _) => mantissa * 2f32.powi(-10),
                _ => (1.0 + mantissa / 8.0) * 2f32.powi(exponent - 8),
            };
            assert_eq!(half_scale(d), expected, "{d:#x}");
            let mut lanes = [f32::NAN; 8];
            // SAFETY: the array has a float for each lane.
            unsafe { half_scales::<Portable>([u32::from(d); 8]).store(lanes.as_mut_ptr()) };
            assert_eq!(lanes, [expected; 8], "{d:#x}");
        }
    }
}
