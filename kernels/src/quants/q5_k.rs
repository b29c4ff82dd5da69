//! Q5_K: 256 5-bit values in 8 groups of 32, each with a 6-bit scale and minimum.

use std::mem::offset_of;

use super::q4_k::{
    nibble_pairs_of, nibbles_of_pair, packed_scales_and_mins, scale_groups, scales_and_mins, set_group_scales,
    set_scales_and_mins,
};
use super::q5_0::group_five_bits;
use crate::GgmlType;
use crate::layout::assemble::{FromLines, Lines};
use crate::layout::block::{Block, Half};
use crate::layout::decode::{Decode, Sink};
use crate::layout::groups::{Field, GroupScales, Interleaved, Unit, UnpackGroup, field};
use crate::layout::runs::{Scales, Unpack, in_memory, move_bits};
use crate::simd::{IntSimd, Simd};

/// A block of 256 values, like [`BlockQ4K`](super::BlockQ4K) with a fifth bit: bit `g` of `qh[l]` belongs to
/// value `l` of group `g`.
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct BlockQ5K {
    d: Half,
    dmin: Half,
    scales: [u8; 12],
    qh: [u8; 32],
    qs: [u8; 128],
}
const _: () = assert!(size_of::<BlockQ5K>() == 176);

impl Block for BlockQ5K {
    const TYPE: GgmlType = GgmlType::Q5_K;

    fn dequantize(&self, out: &mut [f32]) {
        let (d, dmin) = (self.d.get(), self.dmin.get());
        let (scales, mins) = scales_and_mins(&self.scales);
        for (g, group) in out.chunks_exact_mut(32).enumerate() {
            let (scale, min) = (d * f32::from(scales[g]), dmin * f32::from(mins[g]));
            for (l, v) in group.iter_mut().enumerate() {
                let q = self.qs[g / 2 * 32 + l] >> (g % 2 * 4) & 15 | (self.qh[l] >> g & 1) << 4;
                *v = scale * f32::from(q) - min;
            }
        }
    }
}

impl FromLines<8> for BlockQ5K {
    fn from_lines(lines: &Lines<8>, q: &[u8; 256]) -> Self {
        BlockQ5K {
            d: lines.d,
            dmin: lines.dmin,
            scales: packed_scales_and_mins(&lines.scales, &lines.mins),
            qh: std::array::from_fn(|l| (0..8).fold(0, |bits, g| bits | (q[32 * g + l] >> 4) << g)),
            qs: nibble_pairs_of(q),
        }
    }
}

impl<V: Simd> Decode<V> for BlockQ5K {
    #[inline(always)]
    unsafe fn decode<S: Sink<V>>(p: *const u8, sink: &mut S) {
        // SAFETY: `p` is valid for a block (trait contract), and all offsets are within it.
        unsafe {
            let (scales, mins) = scale_groups::<V>(&(*p.cast::<Self>()).scales, p, p.add(offset_of!(Self, dmin)));
            let (scales, mins) = in_memory((&scales, &mins));
            for pair in 0..4 {
                let even = V::line(V::splat(scales[2 * pair]), V::splat(mins[2 * pair]));
                let odd = V::line(V::splat(scales[2 * pair + 1]), V::splat(mins[2 * pair + 1]));
                for l in (0..32).step_by(V::LANES) {
                    let q = V::load_u8(p.add(offset_of!(Self, qs) + pair * 32 + l));
                    let fifth = V::load_u8(p.add(offset_of!(Self, qh) + l));
                    sink.put(pair * 64 + l, V::low5(even, q, V::has_bit(fifth, 1 << (2 * pair))));
                    sink.put(pair * 64 + 32 + l, V::high5(odd, q, V::has_bit(fifth, 2 << (2 * pair))));
                }
            }
        }
    }
}

impl<V: IntSimd> Unpack<V> for BlockQ5K {
    const BITS: u32 = 5;

    #[inline(always)]
    unsafe fn scales(p: *const u8, _: usize, to: &mut Scales) {
        // SAFETY: `p` is valid for the chunk's blocks (trait contract), and all offsets are within a block.
        unsafe {
            set_scales_and_mins::<V::Float>(&(*p.cast::<Self>()).scales, p, p.add(offset_of!(Self, dmin)), to);
        }
    }

    #[inline(always)]
    unsafe fn values(p: *const u8, i: usize) -> V {
        // SAFETY: `p` is valid for the block of run `i` (trait contract), and all offsets are within it.
        unsafe {
            let fifth = V::load(p.add(offset_of!(Self, qh)));
            let nibbles: V = nibbles_of_pair(p.add(offset_of!(Self, qs)), i);
            nibbles.or(move_bits(fifth, i, 4).and(V::splat(16)))
        }
    }
}

impl Interleaved for BlockQ5K {
    const FIELDS: &'static [Field] = &[
        field(2, Unit::Two),
        field(2, Unit::Two),
        field(12, Unit::One),
        field(32, Unit::Runs { bits: 1 }),
        field(128, Unit::Runs { bits: 4 }),
    ];
}

impl<V: IntSimd> UnpackGroup<V> for BlockQ5K {
    #[inline(always)]
    unsafe fn group_scales(p: *const u8, _: usize, to: *mut GroupScales) {
        // SAFETY: `p` is valid for the chunk's blocks of a row group (trait contract), and all offsets are
        // within a block.
        unsafe {
            set_group_scales::<V>(p, offset_of!(Self, scales), offset_of!(Self, dmin), to);
        }
    }

    #[inline(always)]
    unsafe fn group_values(p: *const u8, i: usize, j: usize) -> V {
        // SAFETY: `p` is valid for the row group's block of run `i` (trait contract), and all offsets are
        // within it.
        unsafe { group_five_bits(p, offset_of!(Self, qh) + i * 4, offset_of!(Self, qs) + i * 16, j) }
    }
}
