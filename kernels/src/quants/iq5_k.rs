//! IQ5_K: 256 5-bit indices in 16 groups of 16, each with a 6-bit scale and one of two tables.

use std::mem::offset_of;

use super::q4_k::nibbles_of_pair;
use super::shifted::{nibble_has_bit, part, set_six_bit_scales, six_bit_scales, xor};
use crate::GgmlType;
use crate::layout::block::{Block, Half};
use crate::layout::decode::Decode;
use crate::layout::runs::{Scales, Unpack, move_bits};
use crate::simd::{IntSimd, Simd};

/// Table of the values.
pub(super) const VALUES: [i8; 32] = [
    -126, -114, -103, -92, -83, -74, -65, -57, -50, -43, -36, -30, -24, -18, -12, -6, -1, 5, 11, 17, 23, 29, 36, 43,
    51, 59, 68, 77, 87, 97, 109, 121,
];

/// Difference of the tables.
pub(super) const SHIFT: i8 = 2;

/// A block of 256 values: a value of group `g` is `d * (scale[g] - 32) * (VALUES[q] + SHIFT * bit g of shifted)`. The
/// scales are packed as in [`BlockIQ4K`](super::BlockIQ4K), and the indices in `qs` and `qh` as in
/// [`BlockQ5K`](super::BlockQ5K).
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct BlockIQ5K {
    d: Half,
    shifted: [u8; 2],
    scales_h: [u8; 4],
    scales_l: [u8; 8],
    qs: [u8; 128],
    qh: [u8; 32],
}
const _: () = assert!(size_of::<BlockIQ5K>() == 176);

impl Block for BlockIQ5K {
    const TYPE: GgmlType = GgmlType::IQ5_K;

    fn dequantize(&self, out: &mut [f32]) {
        let d = self.d.get();
        let scales = six_bit_scales(self.scales_l, self.scales_h);
        let shifted = u16::from_le_bytes(self.shifted);
        for (g, group) in out.chunks_exact_mut(16).enumerate() {
            let (scale, shift) = (d * f32::from(scales[g]), SHIFT * (shifted >> g & 1) as i8);
            let (run, first) = (g / 2, g % 2 * 16);
            for (l, v) in (first..).zip(group) {
                let q = self.qs[run / 2 * 32 + l] >> (run % 2 * 4) & 15 | (self.qh[l] >> run & 1) << 4;
                *v = scale * f32::from(VALUES[usize::from(q)] + shift);
            }
        }
    }
}

impl<V: Simd> Decode<V> for BlockIQ5K {}

impl<V: IntSimd> Unpack<V> for BlockIQ5K {
    const BY_16: bool = true;
    const SIGNED: bool = true;
    const HAS_MINS: bool = true;

    #[inline(always)]
    unsafe fn scales(p: *const u8, _: usize, to: &mut Scales) {
        // SAFETY: `p` is valid for the chunk's block (trait contract), and starts with an f16.
        unsafe {
            let block = &*p.cast::<Self>();
            let (d, packed) = (V::Float::splat_f16(p), (&block.scales_l, &block.scales_h));
            set_six_bit_scales(d, packed, block.shifted, f32::from(SHIFT), to);
        }
    }

    #[inline(always)]
    unsafe fn values(p: *const u8, i: usize) -> V {
        // SAFETY: `p` is valid for the block of run `i` (trait contract), and all offsets are within it.
        unsafe {
            let nibbles: V = nibbles_of_pair(p.add(offset_of!(Self, qs)), i);
            let fifth = move_bits(V::load(p.add(offset_of!(Self, qh))), i, 0).and(V::splat(1));
            values_of(nibbles, fifth)
        }
    }
}

/// Returns the values of indices with these low four bits and this fifth bit.
#[inline(always)]
pub(super) fn values_of<V: IntSimd>(nibbles: V, fifth: V) -> V {
    const LOW: [i8; 16] = part(&VALUES, 0);
    const CHANGED: [i8; 16] = xor(LOW, part(&VALUES, 1));
    let changed = nibbles.lookup(&CHANGED).and(nibble_has_bit(fifth, 0));
    nibbles.lookup(&LOW).xor(changed)
}
