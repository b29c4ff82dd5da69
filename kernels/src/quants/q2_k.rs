//! Q2_K: 256 2-bit values in 16 groups of 16, each with a 4-bit scale and minimum.

use std::mem::offset_of;

use crate::GgmlType;
use crate::layout::assemble::{FromLines, Lines};
use crate::layout::block::{Block, Half};
use crate::layout::decode::{Decode, Sink};
use crate::layout::groups::{
    Field, GroupScales, Interleaved, Unit, UnpackGroup, field, group_bit_pairs, load_group_bytes, load_group_f16,
};
use crate::layout::runs::{Scales, Unpack, in_memory, set_halves};
use crate::simd::{IntSimd, Simd};

/// A block of 256 values: a value of group `g` is `d * (scales[g] & 15) * q - dmin * (scales[g] >> 4)`.
///
/// Each half of 128 values has 32 bytes of `qs`. Bits `2j` and `2j + 1` of byte `l` are `q` of value `32 j +
/// l` of the half.
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct BlockQ2K {
    scales: [u8; 16],
    qs: [u8; 64],
    d: Half,
    dmin: Half,
}
const _: () = assert!(size_of::<BlockQ2K>() == 84);

impl Block for BlockQ2K {
    const TYPE: GgmlType = GgmlType::Q2_K;

    fn dequantize(&self, out: &mut [f32]) {
        let (d, dmin) = (self.d.get(), self.dmin.get());
        for (g, group) in out.chunks_exact_mut(16).enumerate() {
            let scale = d * f32::from(self.scales[g] & 15);
            let min = dmin * f32::from(self.scales[g] >> 4);
            let (first, shift) = (g / 8 * 32 + g % 2 * 16, g % 8 / 2 * 2);
            for (l, v) in group.iter_mut().enumerate() {
                *v = scale * f32::from(self.qs[first + l] >> shift & 3) - min;
            }
        }
    }
}

impl FromLines<16> for BlockQ2K {
    fn from_lines(lines: &Lines<16>, q: &[u8; 256]) -> Self {
        BlockQ2K {
            scales: std::array::from_fn(|g| lines.scales[g] | lines.mins[g] << 4),
            qs: bit_pairs_of(q),
            d: lines.d,
            dmin: lines.dmin,
        }
    }
}

/// Stores the low two bits of each element, in the order of [`BlockQ2K`].
#[inline(always)]
pub(super) fn bit_pairs_of(q: &[u8; 256]) -> [u8; 64] {
    let mut packed = [0; 64];
    for (packed, q) in packed.as_chunks_mut::<32>().0.iter_mut().zip(q.as_chunks::<128>().0) {
        for (j, q) in q.as_chunks::<32>().0.iter().enumerate() {
            for (byte, q) in packed.iter_mut().zip(q) {
                *byte |= (q & 3) << (2 * j);
            }
        }
    }
    packed
}

impl<V: Simd> Decode<V> for BlockQ2K {
    #[inline(always)]
    unsafe fn decode<S: Sink<V>>(p: *const u8, sink: &mut S) {
        // SAFETY: `p` is valid for a block (trait contract), and all offsets are within it.
        unsafe {
            let d = V::splat_f16(p.add(offset_of!(Self, d)));
            let dmin = V::splat(0.0).sub(V::splat_f16(p.add(offset_of!(Self, dmin))));
            let (mut scales, mut mins) = ([0.0; 16], [0.0; 16]);
            for g in (0..16).step_by(V::LANES) {
                let packed = V::load_u8(p.add(offset_of!(Self, scales) + g));
                let scale = V::from_int(V::and(packed, 15)).mul(d);
                scale
                    .mul(V::load(UNSHIFTED_FACTORS.as_ptr().add(g)))
                    .store(scales.as_mut_ptr().add(g));
                V::from_int(V::shr(packed, 4)).mul(dmin).store(mins.as_mut_ptr().add(g));
            }
            let (scales, mins) = in_memory((&scales, &mins));
            for half in 0..2 {
                for l in (0..32).step_by(V::LANES) {
                    let packed = V::load_u8(p.add(offset_of!(Self, qs) + half * 32 + l));
                    for j in 0..4 {
                        let g = half * 8 + j * 2 + l / 16;
                        let q = V::from_int(V::and(packed, 3 << (2 * j)));
                        sink.put(g * 16 + l % 16, q.mul_add(V::splat(scales[g]), V::splat(mins[g])));
                    }
                }
            }
        }
    }
}

impl<V: IntSimd> Unpack<V> for BlockQ2K {
    const BITS: u32 = 2;
    const BY_16: bool = true;

    #[inline(always)]
    unsafe fn scales(p: *const u8, _: usize, to: &mut Scales) {
        const NIBBLES: u128 = 0x0f0f_0f0f_0f0f_0f0f_0f0f_0f0f_0f0f_0f0f;
        // SAFETY: `p` is valid for the chunk's blocks (trait contract), and all offsets are within a block.
        unsafe {
            let packed = u128::from_le_bytes((*p.cast::<Self>()).scales);
            let (scales, mins) = ((packed & NIBBLES).to_le_bytes(), (packed >> 4 & NIBBLES).to_le_bytes());
            let dmin = V::Float::splat(0.0).sub(V::Float::splat_f16(p.add(offset_of!(Self, dmin))));
            set_halves::<V>(
                scales.as_ptr(),
                V::Float::splat_f16(p.add(offset_of!(Self, d))),
                &mut to.scales,
            );
            set_halves::<V>(mins.as_ptr(), dmin, &mut to.mins);
        }
    }

    #[inline(always)]
    unsafe fn values(p: *const u8, i: usize) -> V {
        // SAFETY: `p` is valid for the block of run `i` (trait contract), and all offsets are within it.
        unsafe { bit_pairs(p.add(offset_of!(Self, qs)), i) }
    }
}

impl Interleaved for BlockQ2K {
    const FIELDS: &'static [Field] = &[
        field(16, Unit::One),
        field(64, Unit::Runs { bits: 2 }),
        field(2, Unit::Two),
        field(2, Unit::Two),
    ];
}

impl<V: IntSimd> UnpackGroup<V> for BlockQ2K {
    #[inline(always)]
    unsafe fn group_scales(p: *const u8, _: usize, to: *mut GroupScales) {
        // SAFETY: `p` is valid for the chunk's blocks of a row group (trait contract), and all offsets are
        // within a block.
        unsafe {
            let d: V::Float = load_group_f16(p, offset_of!(Self, d));
            let dmin = V::Float::splat(0.0).sub(load_group_f16(p, offset_of!(Self, dmin)));
            for half in 0..16 {
                let packed = load_group_bytes::<V::Float>(p, offset_of!(Self, scales) + half);
                GroupScales::set(to, half, V::Float::from_int(V::Float::and(packed, 15)).mul(d));
                GroupScales::set_min(to, half, V::Float::from_int(V::Float::shr(packed, 4)).mul(dmin));
            }
        }
    }

    #[inline(always)]
    unsafe fn group_values(p: *const u8, i: usize, j: usize) -> V {
        // SAFETY: `p` is valid for the row group's block of run `i` (trait contract), and all offsets are
        // within it.
        unsafe { group_bit_pairs(p, offset_of!(Self, qs) + i * 8, j) }
    }
}

/// Returns the 2-bit values of run `i`. Each 32 bytes at `qs` hold four runs.
///
/// # Safety
/// - The CPU supports `V`.
/// - `qs` is valid for reads of the 32 bytes that hold run `i`.
#[inline(always)]
pub(super) unsafe fn bit_pairs<V: IntSimd>(qs: *const u8, i: usize) -> V {
    // SAFETY: the 32 bytes of run `i` are readable (function contract).
    unsafe { V::load(qs.add(i / 4 * 32)).shr(i as u32 % 4 * 2).and(V::splat(3)) }
}

/// Factors that compensate for using the bits of each group's values without shifting them down. The factors
/// are powers of two, hence exact.
pub(super) static UNSHIFTED_FACTORS: [f32; 16] = {
    let mut factors = [0.0; 16];
    let mut g = 0;
    while g < 16 {
        factors[g] = 1.0 / (1 << (g % 8 / 2 * 2)) as f32;
        g += 1;
    }
    factors
};
