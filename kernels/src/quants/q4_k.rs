//! Q4_K: 256 4-bit values in 8 groups of 32, each with a 6-bit scale and minimum.

use std::mem::offset_of;

use crate::GgmlType;
use crate::layout::assemble::{FromLines, Lines};
use crate::layout::block::{Block, Half};
use crate::layout::decode::{Decode, Sink};
use crate::layout::groups::{
    Field, GROUP_ROWS, GroupScales, Interleaved, Unit, UnpackGroup, field, group_nibbles, load_group_f16,
};
use crate::layout::runs::{Scales, Unpack, in_memory};
use crate::simd::{IntSimd, Simd};

/// A block of 256 values: a value of group `g` is `d * scale[g] * q - dmin * min[g]`. Bytes `32 p..32 p + 32`
/// of `qs` hold groups `2p` (low nibbles) and `2p + 1` (high nibbles).
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct BlockQ4K {
    d: Half,
    dmin: Half,
    scales: [u8; 12],
    qs: [u8; 128],
}
const _: () = assert!(size_of::<BlockQ4K>() == 144);

impl Block for BlockQ4K {
    const TYPE: GgmlType = GgmlType::Q4_K;

    fn dequantize(&self, out: &mut [f32]) {
        let (d, dmin) = (self.d.get(), self.dmin.get());
        let (scales, mins) = scales_and_mins(&self.scales);
        for (g, group) in out.chunks_exact_mut(32).enumerate() {
            let (scale, min) = (d * f32::from(scales[g]), dmin * f32::from(mins[g]));
            for (l, v) in group.iter_mut().enumerate() {
                *v = scale * f32::from(self.qs[g / 2 * 32 + l] >> (g % 2 * 4) & 15) - min;
            }
        }
    }
}

impl FromLines<8> for BlockQ4K {
    fn from_lines(lines: &Lines<8>, q: &[u8; 256]) -> Self {
        BlockQ4K {
            d: lines.d,
            dmin: lines.dmin,
            scales: packed_scales_and_mins(&lines.scales, &lines.mins),
            qs: nibble_pairs_of(q),
        }
    }
}

/// Packs the scales and minimums; the inverse of [`scales_and_mins`].
pub(super) fn packed_scales_and_mins(scales: &[u8; 8], mins: &[u8; 8]) -> [u8; 12] {
    std::array::from_fn(|i| match i {
        0..4 => scales[i] | (scales[i + 4] >> 4) << 6,
        4..8 => mins[i - 4] | (mins[i] >> 4) << 6,
        _ => scales[i - 4] & 15 | (mins[i - 4] & 15) << 4,
    })
}

/// Stores the low four bits of each element, in the order of [`BlockQ4K`].
pub(super) fn nibble_pairs_of(q: &[u8; 256]) -> [u8; 128] {
    std::array::from_fn(|i| {
        let first = i / 32 * 64 + i % 32;
        q[first] & 15 | (q[first + 32] & 15) << 4
    })
}

impl<V: Simd> Decode<V> for BlockQ4K {
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
                    sink.put(pair * 64 + l, V::low4(even, q));
                    sink.put(pair * 64 + 32 + l, V::high4(odd, q));
                }
            }
        }
    }
}

impl<V: IntSimd> Unpack<V> for BlockQ4K {
    const BITS: u32 = 4;

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
        unsafe { nibbles_of_pair(p.add(offset_of!(Self, qs)), i) }
    }
}

impl Interleaved for BlockQ4K {
    const FIELDS: &'static [Field] = &[
        field(2, Unit::Two),
        field(2, Unit::Two),
        field(12, Unit::One),
        field(128, Unit::Runs { bits: 4 }),
    ];
}

impl<V: IntSimd> UnpackGroup<V> for BlockQ4K {
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
        unsafe { group_nibbles(p, offset_of!(Self, qs) + i * 16, j) }
    }
}

/// Stores the scales times the f16 at `d`, and the minimums times the negated f16 at `dmin`.
///
/// # Safety
/// - The CPU supports `V`.
/// - `d` and `dmin` are valid for reads of 2 bytes.
#[inline(always)]
pub(super) unsafe fn set_scales_and_mins<V: Simd>(packed: &[u8; 12], d: *const u8, dmin: *const u8, to: &mut Scales) {
    let (scales, mins) = scales_and_mins(packed);
    // SAFETY: `d` and `dmin` are readable (function contract); there are 8 scales and 8 minimums, one per
    // lane.
    unsafe {
        let scales = V::from_int(V::load_u8(scales.as_ptr()));
        let mins = V::from_int(V::load_u8(mins.as_ptr()));
        scales.mul(V::splat_f16(d)).store(to.scales[0].as_mut_ptr());
        let dmin = V::splat(0.0).sub(V::splat_f16(dmin));
        mins.mul(dmin).store(to.mins[0].as_mut_ptr());
    }
}

/// Stores the scales and minimums of all rows, given the offsets of the packed values and of `dmin` in the
/// block.
///
/// # Safety
/// - The CPU supports `V`.
/// - `p` points to a block of a row group that contains both fields, and `to` is valid for writes.
#[inline(always)]
pub(super) unsafe fn set_group_scales<V: IntSimd>(p: *const u8, packed: usize, dmin: usize, to: *mut GroupScales) {
    // SAFETY: each load reads 4 bytes of 8 rows within the packed field (function contract).
    unsafe {
        // Uses the layout of `scales_and_mins`, for 4 groups of each row at a time.
        let [a, b, c] = [packed, packed + 4, packed + 8].map(|at| p.add(GROUP_ROWS * at));
        let (a, b, c) = (V::load(a), V::load(b), V::load(c));
        let (six, four, top) = (V::splat(0x3f), V::splat(0x0f), V::splat(0x30));
        let scales = [a.and(six), c.and(four).or(a.shr(2).and(top))];
        let mins = [b.and(six), c.shr(4).and(four).or(b.shr(2).and(top))];
        let mut bytes = [[[0u8; GROUP_ROWS]; 8]; 2];
        for i in 0..2 {
            scales[i].store((&raw mut bytes[0][4 * i]).cast());
            mins[i].store((&raw mut bytes[1][4 * i]).cast());
        }
        let bytes = in_memory(&bytes);
        let d: V::Float = load_group_f16(p, 0);
        let dmin = V::Float::splat(0.0).sub(load_group_f16(p, dmin));
        for g in 0..8 {
            let scale = V::Float::from_int(V::Float::load_u8(bytes[0][g].as_ptr()));
            let min = V::Float::from_int(V::Float::load_u8(bytes[1][g].as_ptr()));
            GroupScales::set(to, g, scale.mul(d));
            GroupScales::set_min(to, g, min.mul(dmin));
        }
    }
}

/// Returns the nibbles of group `i`. Each 32 bytes at `qs` hold two groups.
///
/// # Safety
/// - The CPU supports `V`.
/// - `qs` is valid for reads of the 32 bytes that hold group `i`.
#[inline(always)]
pub(super) unsafe fn nibbles_of_pair<V: IntSimd>(qs: *const u8, i: usize) -> V {
    // SAFETY: the 32 bytes of group `i` are readable (function contract).
    unsafe {
        let pair = V::load(qs.add(i / 2 * 32));
        let group = if i.is_multiple_of(2) { pair } else { pair.shr(4) };
        group.and(V::splat(15))
    }
}

/// Returns the scales times the f16 at `d`, and the minimums times the negated f16 at `dmin`.
///
/// # Safety
/// - The CPU supports `V`.
/// - `d` and `dmin` are valid for reads of 2 bytes.
#[inline(always)]
pub(super) unsafe fn scale_groups<V: Simd>(packed: &[u8; 12], d: *const u8, dmin: *const u8) -> ([f32; 8], [f32; 8]) {
    let (scales, mins) = scales_and_mins(packed);
    // Scales and minimums share an array, because a register may have 16 lanes.
    let mut both = [0u8; 16];
    both[..8].copy_from_slice(&scales);
    both[8..].copy_from_slice(&mins);
    let (mut scales, mut mins) = ([0.0f32; 16], [0.0f32; 16]);
    // SAFETY: `d` and `dmin` are readable (function contract), and 16 is a multiple of `LANES`.
    unsafe {
        let (d, dmin) = (V::splat_f16(d), V::splat(0.0).sub(V::splat_f16(dmin)));
        for at in (0..16).step_by(V::LANES) {
            let x = V::from_int(V::load_u8(both.as_ptr().add(at)));
            x.mul(d).store(scales.as_mut_ptr().add(at));
            x.mul(dmin).store(mins.as_mut_ptr().add(at));
        }
    }
    (std::array::from_fn(|g| scales[g]), std::array::from_fn(|g| mins[8 + g]))
}

/// Unpacks the 6-bit scales and minimums of 8 groups from 12 bytes. For groups 0..4, they are the low 6 bits
/// of bytes 0..4 and 4..8. For groups 4..8, the low 4 bits are the nibbles of bytes 8..12, and the high 2
/// bits are the top bits of bytes 0..8.
pub(super) fn scales_and_mins(packed: &[u8; 12]) -> ([u8; 8], [u8; 8]) {
    let word = |i: usize| u32::from_le_bytes([packed[i], packed[i + 1], packed[i + 2], packed[i + 3]]);
    let (a, b, c) = (word(0), word(4), word(8));
    let join = |low: u32, high: u32| (u64::from(low) | u64::from(high) << 32).to_le_bytes();
    let scales = join(a & 0x3f3f_3f3f, c & 0x0f0f_0f0f | (a >> 6 & 0x0303_0303) << 4);
    let mins = join(b & 0x3f3f_3f3f, c >> 4 & 0x0f0f_0f0f | (b >> 6 & 0x0303_0303) << 4);
    (scales, mins)
}
