//! Q3_K: 256 3-bit values around 4 in 16 groups of 16, each with a 6-bit scale.

use std::mem::offset_of;

use super::q2_k::{UNSHIFTED_FACTORS, bit_pairs, bit_pairs_of};
use crate::GgmlType;
use crate::layout::assemble::{FromScales, IntScales};
use crate::layout::block::{Block, Half};
use crate::layout::decode::{Decode, Sink};
use crate::layout::groups::{
    Field, GROUP_ROWS, GroupScales, Interleaved, Unit, UnpackGroup, field, group_bit_pairs, group_nibbles, group_word,
    load_group_f16,
};
use crate::layout::runs::{Scales, Unpack, in_memory, move_bits, set_halves};
use crate::simd::{IntSimd, Simd};

/// A block of 256 values: a value of group `g` is `d * (scale[g] - 32) * (q - 4)`.
///
/// The low two bits of `q` are in `qs` as in [`BlockQ2K`](super::BlockQ2K). The third bit of value `32 j + l`
/// is bit `j` of `hmask[l]`.
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct BlockQ3K {
    hmask: [u8; 32],
    qs: [u8; 64],
    scales: [u8; 12],
    d: Half,
}
const _: () = assert!(size_of::<BlockQ3K>() == 110);

impl BlockQ3K {
    /// Unpacks the 16 scales: the low 4 bits are the nibbles of bytes 0..8, the high 2 bits are in bytes
    /// 8..12.
    #[inline(always)]
    fn scales(&self) -> [u8; 16] {
        const LOW: u64 = 0x0f0f_0f0f_0f0f_0f0f;
        let [low, high, higher] = bytemuck::cast::<_, [[u8; 4]; 3]>(self.scales).map(u32::from_le_bytes);
        let (low, high) = (u64::from(low) | u64::from(high) << 32, u64::from(higher));
        // Two bits of each byte, for four groups, become the high bits of a byte each.
        let pairs = |shift: u32| high >> shift & 0x0303_0303;
        let first = low & LOW | (pairs(0) | pairs(2) << 32) << 4;
        let second = low >> 4 & LOW | (pairs(4) | pairs(6) << 32) << 4;
        bytemuck::cast([first.to_le_bytes(), second.to_le_bytes()])
    }
}

impl Block for BlockQ3K {
    const TYPE: GgmlType = GgmlType::Q3_K;

    fn dequantize(&self, out: &mut [f32]) {
        let d = self.d.get();
        for ((g, group), scale) in out.chunks_exact_mut(16).enumerate().zip(self.scales()) {
            let scale = d * (f32::from(scale) - 32.0);
            let (first, shift) = (g / 8 * 32 + g % 2 * 16, g % 8 / 2 * 2);
            for (l, v) in group.iter_mut().enumerate() {
                let high = self.hmask[g % 2 * 16 + l] >> (g / 2) & 1;
                let q = self.qs[first + l] >> shift & 3 | high << 2;
                *v = scale * (i32::from(q) - 4) as f32;
            }
        }
    }
}

impl FromScales<16> for BlockQ3K {
    // Encoders compile the loops for their instruction set.
    #[inline(always)]
    fn from_scales(scales: &IntScales<16>, q: &[u8; 256]) -> Self {
        let scale = |g: usize| (i32::from(scales.scales[g]) + 32) as u8;
        let mut hmask = [0; 32];
        for (j, q) in q.as_chunks::<32>().0.iter().enumerate() {
            for (bits, q) in hmask.iter_mut().zip(q) {
                *bits |= (q >> 2) << j;
            }
        }
        BlockQ3K {
            hmask,
            qs: bit_pairs_of(q),
            scales: std::array::from_fn(|i| match i {
                0..8 => scale(i) & 15 | (scale(i + 8) & 15) << 4,
                _ => (0..4).fold(0, |byte, j| byte | (scale(i - 8 + 4 * j) >> 4) << (2 * j)),
            }),
            d: scales.d,
        }
    }
}

impl<V: Simd> Decode<V> for BlockQ3K {
    #[inline(always)]
    unsafe fn decode<S: Sink<V>>(p: *const u8, sink: &mut S) {
        // SAFETY: `p` is valid for a block (trait contract), and all offsets are within it.
        unsafe {
            let d = V::splat_f16(p.add(offset_of!(Self, d)));
            let block = &*p.cast::<Self>();
            let (packed, clear) = (block.scales(), block.hmask.map(|bits| !bits));
            let (mut scales, mut fours) = ([0.0; 16], [0.0; 16]);
            for g in (0..16).step_by(V::LANES) {
                let scale = V::from_int(V::load_u8(packed.as_ptr().add(g)))
                    .sub(V::splat(32.0))
                    .mul(d);
                scale
                    .mul(V::load(UNSHIFTED_FACTORS.as_ptr().add(g)))
                    .store(scales.as_mut_ptr().add(g));
                scale.mul(V::splat(-4.0)).store(fours.as_mut_ptr().add(g));
            }
            let (scales, fours, clear) = in_memory((&scales, &fours, &clear));
            for l in (0..32).step_by(V::LANES) {
                let clear = V::load_u8(clear.as_ptr().add(l));
                for half in 0..2 {
                    let packed = V::load_u8(p.add(offset_of!(Self, qs) + half * 32 + l));
                    for j in 0..4 {
                        let g = half * 8 + j * 2 + l / 16;
                        let low = V::from_int(V::and(packed, 3 << (2 * j))).mul(V::splat(scales[g]));
                        // Subtract 4 if the third bit is clear.
                        let is_clear = V::has_bit(clear, 1 << (half * 4 + j));
                        sink.put(g * 16 + l % 16, low.add_where(is_clear, V::splat(fours[g])));
                    }
                }
            }
        }
    }
}

impl<V: IntSimd> Unpack<V> for BlockQ3K {
    const BITS: u32 = 3;
    const BY_16: bool = true;
    const ZERO: u8 = 4;

    #[inline(always)]
    unsafe fn scales(p: *const u8, _: usize, to: &mut Scales) {
        // SAFETY: `p` is valid for the chunk's blocks (trait contract), and all offsets are within a block.
        unsafe {
            let d = V::Float::splat_f16(p.add(offset_of!(Self, d)));
            let scales = (*p.cast::<Self>()).scales().map(|scale| scale.wrapping_sub(32));
            set_halves::<V>(scales.as_ptr(), d, &mut to.scales);
            set_halves::<V>(scales.as_ptr(), d.mul(d.constant(-4.0)), &mut to.mins);
        }
    }

    #[inline(always)]
    unsafe fn values(p: *const u8, i: usize) -> V {
        // SAFETY: `p` is valid for the block of run `i` (trait contract), and all offsets are within it.
        unsafe {
            let third = V::load(p.add(offset_of!(Self, hmask)));
            let low: V = bit_pairs(p.add(offset_of!(Self, qs)), i);
            low.or(move_bits(third, i, 2).and(V::splat(4)))
        }
    }
}

impl Interleaved for BlockQ3K {
    const FIELDS: &'static [Field] = &[
        field(32, Unit::Runs { bits: 1 }),
        field(64, Unit::Runs { bits: 2 }),
        field(12, Unit::One),
        field(2, Unit::Two),
    ];
}

impl<V: IntSimd> UnpackGroup<V> for BlockQ3K {
    #[inline(always)]
    unsafe fn group_scales(p: *const u8, _: usize, to: *mut GroupScales) {
        // SAFETY: `p` is valid for the chunk's blocks of a row group (trait contract), and all offsets are
        // within a block.
        unsafe {
            let d: V::Float = load_group_f16(p, offset_of!(Self, d));
            // A register holds four scales of each row. The low 4 bits are nibbles of 8 bytes, followed by 4 bytes
            // with the high 2 bits of four scales each.
            let scales = offset_of!(Self, scales);
            let high: V = group_word(p, scales + 8);
            let mut bytes = [[0i8; 4 * GROUP_ROWS]; 4];
            for (four, bytes) in bytes.iter_mut().enumerate() {
                let low: V = group_nibbles(p, scales, four % 2 + four / 2 * 4);
                let high = move_bits(high, 2 * four, 4).and(V::splat(0x30));
                low.or(high).sub(V::splat(32)).store(bytes.as_mut_ptr().cast());
            }
            for (half, bytes) in bytes.as_flattened().chunks_exact(GROUP_ROWS).enumerate() {
                let scale = V::Float::from_int(V::Float::load_i8(bytes.as_ptr().cast()));
                GroupScales::set(to, half, scale.mul(d));
            }
        }
    }

    #[inline(always)]
    unsafe fn group_values(p: *const u8, i: usize, j: usize) -> V {
        // SAFETY: `p` is valid for the row group's block of run `i` (trait contract), and all offsets are
        // within it. Bit `j` of each byte of `third` is the third bit of a value.
        unsafe {
            let third: V = group_word(p, offset_of!(Self, hmask) + i * 4);
            let low: V = group_bit_pairs(p, offset_of!(Self, qs) + i * 8, j);
            low.or(move_bits(third, j, 2).and(V::splat(4)))
        }
    }
}
