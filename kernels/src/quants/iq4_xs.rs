//! IQ4_XS: 256 4-bit indices in 8 groups of 32, each with a 6-bit scale.

use std::mem::offset_of;

use super::iq4_nl::{FLOATS, VALUES};
use crate::GgmlType;
use crate::layout::assemble::{FromScales, IntScales};
use crate::layout::block::{Block, Half};
use crate::layout::decode::{Decode, Sink};
use crate::layout::groups::{
    Field, GroupScales, Interleaved, Unit, UnpackGroup, field, group_nibbles, load_group_bytes, load_group_f16,
};
use crate::layout::runs::{Scales, Unpack, set_scales};
use crate::simd::{IntSimd, Simd};

/// A block of 256 values: a value of group `g` is `d * (scale[g] - 32) * VALUES[q]`, with the table and byte
/// order of [`BlockIQ4NL`](super::BlockIQ4NL).
///
/// The low 4 bits of the scales are the nibbles of `scales_l`; the high 2 bits are in `scales_h`.
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct BlockIQ4XS {
    d: Half,
    scales_h: [u8; 2],
    scales_l: [u8; 4],
    qs: [u8; 128],
}
const _: () = assert!(size_of::<BlockIQ4XS>() == 136);

impl BlockIQ4XS {
    /// Returns the scales minus 32.
    fn scales(&self) -> [i8; 8] {
        let high = u16::from_le_bytes(self.scales_h);
        std::array::from_fn(|g| {
            let low = self.scales_l[g / 2] >> (g % 2 * 4) & 15;
            (low | ((high >> (2 * g) & 3) as u8) << 4) as i8 - 32
        })
    }
}

impl Block for BlockIQ4XS {
    const TYPE: GgmlType = GgmlType::IQ4_XS;

    fn dequantize(&self, out: &mut [f32]) {
        let d = self.d.get();
        for ((group, qs), scale) in out
            .chunks_exact_mut(32)
            .zip(self.qs.chunks_exact(16))
            .zip(self.scales())
        {
            let scale = d * f32::from(scale);
            let (low, high) = group.split_at_mut(16);
            for j in 0..16 {
                low[j] = scale * f32::from(VALUES[usize::from(qs[j] & 15)]);
                high[j] = scale * f32::from(VALUES[usize::from(qs[j] >> 4)]);
            }
        }
    }
}

impl FromScales<8> for BlockIQ4XS {
    fn from_scales(scales: &IntScales<8>, q: &[u8; 256]) -> Self {
        let scale = |g: usize| (i32::from(scales.scales[g]) + 32) as u8;
        BlockIQ4XS {
            d: scales.d,
            scales_h: std::array::from_fn(|i| (0..4).fold(0, |byte, j| byte | (scale(4 * i + j) >> 4) << (2 * j))),
            scales_l: std::array::from_fn(|i| scale(2 * i) & 15 | (scale(2 * i + 1) & 15) << 4),
            qs: std::array::from_fn(|i| {
                let first = i / 16 * 32 + i % 16;
                q[first] | q[first + 16] << 4
            }),
        }
    }
}

impl<V: Simd> Decode<V> for BlockIQ4XS {
    #[inline(always)]
    unsafe fn decode<S: Sink<V>>(p: *const u8, sink: &mut S) {
        // SAFETY: `p` is valid for a block (trait contract), and all offsets are within it.
        unsafe {
            let d = V::splat_f16(p);
            let scales = (*p.cast::<Self>()).scales();
            for g in 0..8 {
                let table = V::table(&FLOATS, d.mul(V::splat(f32::from(scales[g]))));
                for at in (0..16).step_by(V::LANES) {
                    let q = V::load_u8(p.add(offset_of!(Self, qs) + g * 16 + at));
                    sink.put(g * 32 + at, V::lookup(table, q));
                    sink.put(g * 32 + at + 16, V::lookup(table, V::shr(q, 4)));
                }
            }
        }
    }
}

impl<V: IntSimd> Unpack<V> for BlockIQ4XS {
    const SIGNED: bool = true;

    #[inline(always)]
    unsafe fn scales(p: *const u8, _: usize, to: &mut Scales) {
        // SAFETY: `p` is valid for the chunk's blocks (trait contract), and all offsets are within a block.
        unsafe {
            let scales = (*p.cast::<Self>()).scales();
            let scales = V::Float::from_int(V::Float::load_i8(scales.as_ptr().cast()));
            set_scales(scales.mul(V::Float::splat_f16(p)), 0.0, to);
        }
    }

    #[inline(always)]
    unsafe fn values(p: *const u8, i: usize) -> V {
        // SAFETY: `p` is valid for the block of run `i` (trait contract), and all offsets are within it.
        unsafe { V::load_nibbles(p.add(offset_of!(Self, qs) + i * 16)).lookup(&VALUES) }
    }
}

impl Interleaved for BlockIQ4XS {
    const FIELDS: &'static [Field] = &[
        field(2, Unit::Two),
        field(2, Unit::One),
        field(4, Unit::One),
        field(128, Unit::Four),
    ];
}

impl<V: IntSimd> UnpackGroup<V> for BlockIQ4XS {
    #[inline(always)]
    unsafe fn group_scales(p: *const u8, _: usize, to: *mut GroupScales) {
        // SAFETY: `p` is valid for the chunk's blocks of a row group (trait contract), and all offsets are
        // within a block.
        unsafe {
            let d: V::Float = load_group_f16(p, 0);
            for g in 0..8 {
                let low = load_group_bytes::<V::Float>(p, offset_of!(Self, scales_l) + g / 2);
                let high = load_group_bytes::<V::Float>(p, offset_of!(Self, scales_h) + g / 4);
                let (low, high) = (
                    V::Float::shr(low, g as u32 % 2 * 4),
                    V::Float::shr(high, g as u32 % 4 * 2),
                );
                let scale = V::Float::or(V::Float::and(low, 15), V::Float::shl(V::Float::and(high, 3), 4));
                let scale = V::Float::from_int(scale).sub(V::Float::splat(32.0));
                GroupScales::set(to, g, scale.mul(d));
            }
        }
    }

    #[inline(always)]
    unsafe fn group_values(p: *const u8, i: usize, j: usize) -> V {
        // SAFETY: `p` is valid for the row group's block of run `i` (trait contract), and all offsets are
        // within it.
        unsafe { group_nibbles::<V>(p, offset_of!(Self, qs) + i * 16, j).lookup(&VALUES) }
    }
}
