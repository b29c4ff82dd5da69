//! IQ5_KS: 256 5-bit indices in 8 groups of 32, each with an 8-bit scale and one of two tables.

use std::mem::offset_of;

use super::iq5_k::{SHIFT, VALUES, values_of};
use super::q4_k::nibbles_of_pair;
use super::shifted::{scale_and_flag, set_scales_of_row};
use crate::GgmlType;
use crate::layout::block::Block;
use crate::layout::decode::Decode;
use crate::layout::runs::{Scales, Unpack, move_bits};
use crate::simd::{IntSimd, Simd};

/// A block of 256 values in memory: a value of group `g` is `d * ((scales[g] & 254) - 127) * (VALUES[q] + SHIFT * bit 0
/// of scales[g])`. The table is that of [`BlockIQ5K`](super::BlockIQ5K), and `qs` and `qh` hold the indices as in
/// [`BlockQ5K`](super::BlockQ5K).
///
/// Files store `d`, an f32, once per row (see [`GgmlType::in_memory`]).
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct BlockIQ5KS {
    d: [u8; 4],
    scales: [u8; 8],
    qs: [u8; 128],
    qh: [u8; 32],
}
const _: () = assert!(size_of::<BlockIQ5KS>() == 172);

impl Block for BlockIQ5KS {
    const TYPE: GgmlType = GgmlType::IQ5_KS_D;

    fn dequantize(&self, out: &mut [f32]) {
        for (g, group) in out.chunks_exact_mut(32).enumerate() {
            let (scale, is_shifted) = scale_and_flag(self.scales[g]);
            let scale = f32::from_le_bytes(self.d) * f32::from(scale);
            let shift = if is_shifted { SHIFT } else { 0 };
            for (l, v) in group.iter_mut().enumerate() {
                let q = self.qs[g / 2 * 32 + l] >> (g % 2 * 4) & 15 | (self.qh[l] >> g & 1) << 4;
                *v = scale * f32::from(VALUES[usize::from(q)] + shift);
            }
        }
    }
}

impl<V: Simd> Decode<V> for BlockIQ5KS {}

impl<V: IntSimd> Unpack<V> for BlockIQ5KS {
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
        unsafe {
            let nibbles: V = nibbles_of_pair(p.add(offset_of!(Self, qs)), i);
            let fifth = move_bits(V::load(p.add(offset_of!(Self, qh))), i, 0).and(V::splat(1));
            values_of(nibbles, fifth)
        }
    }
}
