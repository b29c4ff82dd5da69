//! Q5_0: 32 5-bit values around 16, with one scale.

use std::mem::offset_of;

use super::fit::{best_scale, inverse, round_to};
use crate::GgmlType;
use crate::layout::assemble::FromScale;
use crate::layout::block::{Block, Half, Quantize};
use crate::layout::decode::{Decode, Encode, Sink};
use crate::layout::groups::{Field, Interleaved, Unit, UnpackGroup, block_at_run, field, group_nibbles, group_word};
use crate::layout::runs::{Unpack, move_bits};
use crate::simd::{IntSimd, Simd};

/// A block of 32 values: value `j` is `d * (q - 16)`. Byte `j` of `qs` holds the low 4 bits of values `j`
/// (low nibble) and `j + 16` (high nibble). Bit `j` of `qh` is the fifth bit of value `j`.
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct BlockQ5_0 {
    d: Half,
    qh: [u8; 4],
    qs: [u8; 16],
}
const _: () = assert!(size_of::<BlockQ5_0>() == 22);

impl Block for BlockQ5_0 {
    const TYPE: GgmlType = GgmlType::Q5_0;

    fn dequantize(&self, out: &mut [f32]) {
        let d = self.d.get();
        for (v, q) in out.iter_mut().zip(join(&self.qh, &self.qs)) {
            *v = (i32::from(q) - 16) as f32 * d;
        }
    }
}

impl FromScale for BlockQ5_0 {
    #[inline]
    fn from_scale(d: Half, q: &[u8]) -> Self {
        let (qh, qs) = split(|j| q[j]);
        BlockQ5_0 { d, qh, qs }
    }
}

impl<V: Simd> Decode<V> for BlockQ5_0 {
    #[inline(always)]
    unsafe fn decode<S: Sink<V>>(p: *const u8, sink: &mut S) {
        // SAFETY: `p` is valid for a block (trait contract), and all offsets are within it.
        unsafe {
            let d = V::splat_f16(p);
            let line = V::line(d, d.mul(V::splat(-16.0)));
            let fifth = p.add(offset_of!(Self, qh)).cast::<u32>().read_unaligned().to_le();
            for at in (0..16).step_by(V::LANES) {
                let q = V::load_u8(p.add(offset_of!(Self, qs) + at));
                sink.put(at, V::low5(line, q, V::mask(fifth, at)));
                sink.put(at + 16, V::high5(line, q, V::mask(fifth, at + 16)));
            }
        }
    }
}

impl<V: IntSimd> Unpack<V> for BlockQ5_0 {
    const BITS: u32 = 5;
    const ZERO: u8 = 16;

    #[inline(always)]
    unsafe fn values(p: *const u8, i: usize) -> V {
        // SAFETY: `p` is valid for the block of run `i` (trait contract), and all offsets are within it.
        unsafe {
            let p = p.add(i * size_of::<Self>());
            five_bits(p.add(offset_of!(Self, qh)), p.add(offset_of!(Self, qs)))
        }
    }
}

impl Interleaved for BlockQ5_0 {
    const FIELDS: &'static [Field] = &[field(2, Unit::Two), field(4, Unit::Bits), field(16, Unit::Four)];
}

impl<V: IntSimd> UnpackGroup<V> for BlockQ5_0 {
    #[inline(always)]
    unsafe fn group_values(p: *const u8, i: usize, j: usize) -> V {
        // SAFETY: `p` is valid for the row group's block of run `i` (trait contract), and all offsets are
        // within it.
        unsafe {
            let p = block_at_run::<Self>(p, i);
            group_five_bits(p, offset_of!(Self, qh), offset_of!(Self, qs), j)
        }
    }
}

/// Returns the 32 5-bit values of a block, given the addresses of `qh` and `qs`.
///
/// # Safety
/// - The CPU supports `V`.
/// - `qh` is valid for reads of 4 bytes, and `qs` of 16.
#[inline(always)]
pub(super) unsafe fn five_bits<V: IntSimd>(qh: *const u8, qs: *const u8) -> V {
    // SAFETY: 4 bytes at `qh` and 16 at `qs` are readable (function contract).
    unsafe {
        let fifth = u32::from_le_bytes(qh.cast::<[u8; 4]>().read());
        V::load_nibbles(qs).or(V::from_bits(fifth).and(V::splat(16)))
    }
}

/// Returns 5-bit values `4 j..4 j + 4` of each row of a group, given the offsets of `qh` and `qs`.
///
/// # Safety
/// - The CPU supports `V`.
/// - `p` points to a block of a row group that contains both fields.
#[inline(always)]
pub(super) unsafe fn group_five_bits<V: IntSimd>(p: *const u8, qh: usize, qs: usize, j: usize) -> V {
    // SAFETY: both fields are part of the block (function contract). Bit `j` of each byte of `fifth` is the
    // fifth bit of a value.
    unsafe {
        let fifth: V = group_word(p, qh);
        group_nibbles::<V>(p, qs, j).or(move_bits(fifth, j, 4).and(V::splat(16)))
    }
}

impl Quantize for BlockQ5_0 {
    fn quantize(x: &[f32]) -> Self {
        let ends = [-16.75, -16.5, -16.25, -16.0, -15.75, -15.5, -15.25, -15.0, 15.0, 15.5].into_iter();
        let d = Half::new(best_scale(x, ends, |v| v.round_ties_even().clamp(-16.0, 15.0)));
        let inv = inverse(d.get());
        let (qh, qs) = split(|j| round_to(x[j] * inv + 16.0, 31.0));
        BlockQ5_0 { d, qh, qs }
    }
}

impl<V: Simd> Encode<V> for BlockQ5_0 {}

/// Yields the 32 5-bit values of a block.
pub(super) fn join(qh: &[u8; 4], qs: &[u8; 16]) -> impl Iterator<Item = u8> {
    let high = u32::from_le_bytes(*qh);
    let nibbles = qs.iter().map(|q| q & 15).chain(qs.iter().map(|q| q >> 4));
    nibbles.enumerate().map(move |(j, q)| q | ((high >> j & 1) as u8) << 4)
}

/// Packs 32 5-bit values, given by index; the inverse of [`join`].
#[inline(always)]
pub(super) fn split(q: impl Fn(usize) -> u8) -> ([u8; 4], [u8; 16]) {
    let q: [u8; 32] = std::array::from_fn(q);
    let mut high = [0; 4];
    for (byte, q) in high.iter_mut().zip(q.as_chunks().0) {
        // Multiplication moves bit 4 of byte `i` to bit `i` of the last byte.
        let bits = u64::from_le_bytes(*q) >> 4 & 0x0101_0101_0101_0101;
        *byte = (bits.wrapping_mul(0x0102_0408_1020_4080) >> 56) as u8;
    }
    (high, std::array::from_fn(|j| q[j] & 15 | q[j + 16] << 4))
}
