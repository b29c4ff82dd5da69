//! IQ6_K: 256 6-bit indices in 16 groups of 16, each with an 8-bit scale and one of two tables.

use std::mem::offset_of;

use super::q4_k::nibbles_of_pair;
use super::shifted::{nibble_has_bit, part, set_shifted_scales, xor};
use crate::GgmlType;
use crate::layout::block::{Block, Half};
use crate::layout::decode::Decode;
use crate::layout::runs::{Scales, Unpack, move_bits};
use crate::simd::{IntSimd, Simd};

/// Table of the values.
const VALUES: [i8; 64] = [
    -127, -121, -115, -109, -104, -98, -93, -88, -84, -79, -74, -70, -66, -62, -58, -54, -51, -47, -44, -40, -37, -34,
    -31, -28, -25, -22, -19, -16, -13, -11, -8, -5, -2, 0, 3, 6, 9, 12, 14, 17, 20, 23, 27, 30, 33, 36, 40, 44, 47, 51,
    55, 59, 63, 68, 72, 77, 82, 87, 92, 98, 103, 109, 115, 121,
];

/// Difference of the tables.
const SHIFT: i8 = 1;

/// A block of 256 values: a value of group `g` is `d * scales[g] * (VALUES[q] + SHIFT * bit g of shifted)`.
///
/// The low 4 bits of the indices are packed as in [`BlockQ4K`](super::BlockQ4K), and the high 2 bits as in
/// [`BlockQ6K`](super::BlockQ6K).
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct BlockIQ6K {
    d: Half,
    shifted: [u8; 2],
    scales: [i8; 16],
    qs: [u8; 128],
    qh: [u8; 64],
}
const _: () = assert!(size_of::<BlockIQ6K>() == 212);

impl Block for BlockIQ6K {
    const TYPE: GgmlType = GgmlType::IQ6_K;

    fn dequantize(&self, out: &mut [f32]) {
        let d = self.d.get();
        let shifted = u16::from_le_bytes(self.shifted);
        for (g, group) in out.chunks_exact_mut(16).enumerate() {
            let (scale, shift) = (d * f32::from(self.scales[g]), SHIFT * (shifted >> g & 1) as i8);
            let (run, first) = (g / 2, g % 2 * 16);
            for (l, v) in (first..).zip(group) {
                let low = self.qs[run / 2 * 32 + l] >> (run % 2 * 4) & 15;
                let high = self.qh[run / 4 * 32 + l] >> (run % 4 * 2) & 3;
                *v = scale * f32::from(VALUES[usize::from(low | high << 4)] + shift);
            }
        }
    }
}

impl<V: Simd> Decode<V> for BlockIQ6K {}

impl<V: IntSimd> Unpack<V> for BlockIQ6K {
    const BY_16: bool = true;
    const SIGNED: bool = true;
    const HAS_MINS: bool = true;

    #[inline(always)]
    unsafe fn scales(p: *const u8, _: usize, to: &mut Scales) {
        // SAFETY: `p` is valid for the chunk's block (trait contract), and all offsets are within it.
        unsafe {
            let block = &*p.cast::<Self>();
            let d = V::Float::splat_f16(p);
            let scales = V::load_even_odd_i8(p.add(offset_of!(Self, scales)));
            let scales = scales.map(|scales| scales.mul(d));
            set_shifted_scales(scales, u16::from_le_bytes(block.shifted), f32::from(SHIFT), to);
        }
    }

    #[inline(always)]
    unsafe fn values(p: *const u8, i: usize) -> V {
        // SAFETY: `p` is valid for the block of run `i` (trait contract), and all offsets are within it.
        unsafe {
            let nibbles: V = nibbles_of_pair(p.add(offset_of!(Self, qs)), i);
            let high = V::load(p.add(offset_of!(Self, qh) + i / 4 * 32));
            let high = move_bits(high, i % 4 * 2, 0).and(V::splat(3));
            values_of(nibbles, high)
        }
    }
}

/// Returns the values of indices with these low four and high two bits.
#[inline(always)]
fn values_of<V: IntSimd>(nibbles: V, high: V) -> V {
    const PARTS: [[i8; 16]; 4] = [part(&VALUES, 0), part(&VALUES, 1), part(&VALUES, 2), part(&VALUES, 3)];
    const BIT_4: [i8; 16] = xor(PARTS[0], PARTS[1]);
    const BIT_5: [i8; 16] = xor(PARTS[0], PARTS[2]);
    const BOTH: [i8; 16] = xor(BIT_4, xor(PARTS[2], PARTS[3]));
    let (bit_4, bit_5) = (nibble_has_bit(high, 0), nibble_has_bit(high, 1));
    let with_bit_5 = nibbles.lookup(&BIT_5).xor(nibbles.lookup(&BOTH).and(bit_4));
    let value = nibbles.lookup(&PARTS[0]).xor(nibbles.lookup(&BIT_4).and(bit_4));
    value.xor(with_bit_5.and(bit_5))
}
