//! IQ4_K: 256 4-bit indices in 16 groups of 16, each with a 6-bit scale and one of two tables.

use std::mem::offset_of;

use super::iq4_nl::{FLOATS, VALUES, to_floats};
use super::shifted::{GROUPS, packed_scales, set_six_bit_scales, six_bit_scales};
use crate::GgmlType;
use crate::layout::assemble::{FromShifted, ShiftedScales};
use crate::layout::block::{Block, Half};
use crate::layout::decode::{Decode, Sink};
use crate::layout::groups::{
    Field, GroupScales, Interleaved, Unit, UnpackGroup, field, group_nibbles, load_group_bytes, load_group_f16,
};
use crate::layout::runs::{Scales, Unpack};
use crate::simd::{IntSimd, Simd};

/// Difference between the entries of the two tables.
pub(crate) const SHIFT: i8 = 4;

/// The shifted table as floats.
pub(super) static SHIFTED: [f32; 16] = {
    let (mut values, mut i) = (VALUES, 0);
    while i < 16 {
        values[i] += SHIFT;
        i += 1;
    }
    to_floats(values)
};

/// A block of 256 values: a value of group `g` is `d * (scale[g] - 32) * (VALUES[q] + SHIFT * bit g of shifted)`. The
/// table and the byte order are those of [`BlockIQ4NL`](super::BlockIQ4NL).
///
/// The low 4 bits of scale `g` are nibble `g` of `scales_l`; the high 2 bits are bits `2 g` and `2 g + 1` of
/// `scales_h`.
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct BlockIQ4K {
    d: Half,
    shifted: [u8; 2],
    scales_h: [u8; 4],
    scales_l: [u8; 8],
    qs: [u8; 128],
}
const _: () = assert!(size_of::<BlockIQ4K>() == 144);

impl BlockIQ4K {
    /// Returns the table of group `g`.
    #[inline(always)]
    fn table(&self, g: usize) -> &'static [f32; 16] {
        if u16::from_le_bytes(self.shifted) >> g & 1 == 0 {
            &FLOATS
        } else {
            &SHIFTED
        }
    }
}

impl Block for BlockIQ4K {
    const TYPE: GgmlType = GgmlType::IQ4_K;

    fn dequantize(&self, out: &mut [f32]) {
        let d = self.d.get();
        let scales = six_bit_scales(self.scales_l, self.scales_h);
        for (g, group) in out.chunks_exact_mut(16).enumerate() {
            let (scale, table) = (d * f32::from(scales[g]), self.table(g));
            for (v, byte) in group.iter_mut().zip(&self.qs[g / 2 * 16..]) {
                *v = scale * table[usize::from(byte >> (g % 2 * 4) & 15)];
            }
        }
    }
}

impl FromShifted for BlockIQ4K {
    fn from_shifted(scales: &ShiftedScales, q: &[u8; 256]) -> Self {
        let (scales_l, scales_h) = packed_scales(&scales.scales);
        BlockIQ4K {
            d: scales.d,
            shifted: scales.shifted.to_le_bytes(),
            scales_h,
            scales_l,
            qs: std::array::from_fn(|i| {
                let first = i / 16 * 32 + i % 16;
                q[first] | q[first + 16] << 4
            }),
        }
    }
}

impl<V: Simd> Decode<V> for BlockIQ4K {
    #[inline(always)]
    unsafe fn decode<S: Sink<V>>(p: *const u8, sink: &mut S) {
        // SAFETY: `p` is valid for a block (trait contract), and all offsets are within it.
        unsafe {
            let block = &*p.cast::<Self>();
            let d = V::splat_f16(p);
            let scales = six_bit_scales(block.scales_l, block.scales_h);
            for run in 0..8 {
                let table = |g: usize| V::table(block.table(g), d.mul(V::splat(f32::from(scales[g]))));
                let (low, high) = (table(2 * run), table(2 * run + 1));
                for at in (0..16).step_by(V::LANES) {
                    let q = V::load_u8(p.add(offset_of!(Self, qs) + run * 16 + at));
                    sink.put(run * 32 + at, V::lookup(low, q));
                    sink.put(run * 32 + at + 16, V::lookup(high, V::shr(q, 4)));
                }
            }
        }
    }
}

impl<V: IntSimd> Unpack<V> for BlockIQ4K {
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
        unsafe { V::load_nibbles(p.add(offset_of!(Self, qs) + i * 16)).lookup(&VALUES) }
    }
}

impl Interleaved for BlockIQ4K {
    const FIELDS: &'static [Field] = &[
        field(2, Unit::Two),
        field(2, Unit::One),
        field(4, Unit::One),
        field(8, Unit::One),
        field(128, Unit::Four),
    ];
}

impl<V: IntSimd> UnpackGroup<V> for BlockIQ4K {
    #[inline(always)]
    unsafe fn group_scales(p: *const u8, _: usize, to: *mut GroupScales) {
        // SAFETY: `p` is valid for the chunk's blocks of a row group (trait contract), and all offsets are
        // within a block.
        unsafe {
            let d: V::Float = load_group_f16(p, 0);
            for g in 0..GROUPS {
                let low = load_group_bytes::<V::Float>(p, offset_of!(Self, scales_l) + g / 2);
                let high = load_group_bytes::<V::Float>(p, offset_of!(Self, scales_h) + g / 4);
                let low = V::Float::and(V::Float::shr(low, g as u32 % 2 * 4), 15);
                let high = V::Float::and(V::Float::shr(high, g as u32 % 4 * 2), 3);
                let scale = V::Float::from_int(V::Float::or(low, V::Float::shl(high, 4)));
                let scale = scale.sub(V::Float::splat(32.0)).mul(d);
                GroupScales::set(to, g, scale);
                let flags = load_group_bytes::<V::Float>(p, offset_of!(Self, shifted) + g / 8);
                let is_shifted = V::Float::has_bit(flags, 1 << (g % 8));
                let shift = scale.mul(V::Float::splat(f32::from(SHIFT)));
                GroupScales::set_min(to, g, V::Float::splat(0.0).add_where(is_shifted, shift));
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
