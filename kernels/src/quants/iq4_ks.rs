//! IQ4_KS: 256 4-bit indices in 8 groups of 32, each with an 8-bit scale and one of two tables.

use std::mem::offset_of;

use super::iq4_k::{SHIFT, SHIFTED};
use super::iq4_nl::{FLOATS, VALUES};
use super::shifted::{byte_of, scale_and_flag, set_group_scales_of_row, set_scales_of_row};
use crate::GgmlType;
use crate::layout::assemble::RowScales;
use crate::layout::block::Block;
use crate::layout::decode::{Decode, Sink};
use crate::layout::groups::{Field, GroupScales, Interleaved, Unit, UnpackGroup, field, group_nibbles};
use crate::layout::runs::{Scales, Unpack};
use crate::simd::{IntSimd, Simd};

/// A block of 256 values in memory: a value of group `g` is `d * ((scales[g] & 254) - 127) * (VALUES[q] + SHIFT * bit 0
/// of scales[g])`. The table and the byte order are those of [`BlockIQ4NL`](super::BlockIQ4NL).
///
/// Files store `d`, an f32, once per row (see [`GgmlType::in_memory`]).
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct BlockIQ4KS {
    d: [u8; 4],
    scales: [u8; 8],
    qs: [u8; 128],
}
const _: () = assert!(size_of::<BlockIQ4KS>() == 140);

impl BlockIQ4KS {
    /// Returns the scale and the table of group `g`.
    #[inline(always)]
    fn scale_and_table(&self, g: usize) -> (f32, &'static [f32; 16]) {
        let (scale, is_shifted) = scale_and_flag(self.scales[g]);
        let table = if is_shifted { &SHIFTED } else { &FLOATS };
        (f32::from_le_bytes(self.d) * f32::from(scale), table)
    }

    /// Creates a block from the indices of its elements.
    pub(crate) fn from_row_scales(scales: &RowScales, q: &[u8; 256]) -> Self {
        BlockIQ4KS {
            d: scales.d.to_le_bytes(),
            scales: std::array::from_fn(|g| byte_of(scales.scales[g], scales.shifted[g])),
            qs: std::array::from_fn(|i| {
                let first = i / 16 * 32 + i % 16;
                q[first] | q[first + 16] << 4
            }),
        }
    }
}

impl Block for BlockIQ4KS {
    const TYPE: GgmlType = GgmlType::IQ4_KS_D;

    fn dequantize(&self, out: &mut [f32]) {
        for (g, group) in out.chunks_exact_mut(32).enumerate() {
            let (scale, table) = self.scale_and_table(g);
            let (low, high) = group.split_at_mut(16);
            for (j, byte) in self.qs[g * 16..][..16].iter().enumerate() {
                low[j] = scale * table[usize::from(byte & 15)];
                high[j] = scale * table[usize::from(byte >> 4)];
            }
        }
    }
}

impl<V: Simd> Decode<V> for BlockIQ4KS {
    #[inline(always)]
    unsafe fn decode<S: Sink<V>>(p: *const u8, sink: &mut S) {
        // SAFETY: `p` is valid for a block (trait contract), and all offsets are within it.
        unsafe {
            let block = &*p.cast::<Self>();
            for g in 0..8 {
                let (scale, table) = block.scale_and_table(g);
                let table = V::table(table, V::splat(scale));
                for at in (0..16).step_by(V::LANES) {
                    let q = V::load_u8(p.add(offset_of!(Self, qs) + g * 16 + at));
                    sink.put(g * 32 + at, V::lookup(table, q));
                    sink.put(g * 32 + at + 16, V::lookup(table, V::shr(q, 4)));
                }
            }
        }
    }
}

impl<V: IntSimd> Unpack<V> for BlockIQ4KS {
    const SIGNED: bool = true;
    const HAS_MINS: bool = true;

    #[inline(always)]
    unsafe fn scales(p: *const u8, _: usize, to: &mut Scales) {
        // SAFETY: `p` is valid for the chunk's block (trait contract).
        unsafe {
            let block = &*p.cast::<Self>();
            set_scales_of_row::<V::Float>(block.d, &block.scales, f32::from(SHIFT), to);
        }
    }

    #[inline(always)]
    unsafe fn values(p: *const u8, i: usize) -> V {
        // SAFETY: `p` is valid for the block of run `i` (trait contract), and all offsets are within it.
        unsafe { V::load_nibbles(p.add(offset_of!(Self, qs) + i * 16)).lookup(&VALUES) }
    }
}

impl Interleaved for BlockIQ4KS {
    const FIELDS: &'static [Field] = &[field(4, Unit::Four), field(8, Unit::One), field(128, Unit::Four)];
}

impl<V: IntSimd> UnpackGroup<V> for BlockIQ4KS {
    #[inline(always)]
    unsafe fn group_scales(p: *const u8, _: usize, to: *mut GroupScales) {
        // SAFETY: `p` is valid for the chunk's blocks of a row group (trait contract). The blocks start with the
        // scales of the rows, and all offsets are within a block.
        unsafe { set_group_scales_of_row::<V::Float>(p, offset_of!(Self, scales), f32::from(SHIFT), to) }
    }

    #[inline(always)]
    unsafe fn group_values(p: *const u8, i: usize, j: usize) -> V {
        // SAFETY: `p` is valid for the row group's block of run `i` (trait contract), and all offsets are
        // within it.
        unsafe { group_nibbles::<V>(p, offset_of!(Self, qs) + i * 16, j).lookup(&VALUES) }
    }
}
