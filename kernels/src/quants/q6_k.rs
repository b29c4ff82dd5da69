//! Q6_K: 256 6-bit values around 32 in 16 groups of 16, each with an 8-bit scale.

use std::mem::offset_of;

use crate::GgmlType;
use crate::layout::assemble::{FromScales, IntScales};
use crate::layout::block::{Block, Half};
use crate::layout::decode::{Decode, Sink};
use crate::layout::groups::{
    Field, GROUP_ROWS, GroupScales, Interleaved, Unit, UnpackGroup, field, group_nibbles, group_word, load_group_f16,
};
use crate::layout::runs::{Scales, Unpack, in_memory, move_bits, set_halves};
use crate::simd::{IntSimd, Simd};

/// A block of 256 values: a value of group `g` is `d * scales[g] * (q - 32)`.
///
/// Each half of 128 values has 64 bytes of `ql` and 32 of `qh`. For value `32 j + l` of the half, the low 4
/// bits are in byte `32 (j % 2) + l` of `ql` (low nibble for `j < 2`). The high 2 bits are bits
/// `2j` and `2j + 1` of byte `l` of `qh`.
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct BlockQ6K {
    ql: [u8; 128],
    qh: [u8; 64],
    scales: [i8; 16],
    d: Half,
}
const _: () = assert!(size_of::<BlockQ6K>() == 210);

impl Block for BlockQ6K {
    const TYPE: GgmlType = GgmlType::Q6_K;

    fn dequantize(&self, out: &mut [f32]) {
        let d = self.d.get();
        for (g, group) in out.chunks_exact_mut(16).enumerate() {
            let scale = d * f32::from(self.scales[g]);
            let (half, j, first) = (g / 8, g % 8 / 2, g % 2 * 16);
            for (l, v) in group.iter_mut().enumerate() {
                let low = self.ql[half * 64 + j % 2 * 32 + first + l] >> (j / 2 * 4) & 15;
                let high = self.qh[half * 32 + first + l] >> (j * 2) & 3;
                *v = scale * (i32::from(low | high << 4) - 32) as f32;
            }
        }
    }
}

impl FromScales<16> for BlockQ6K {
    fn from_scales(scales: &IntScales<16>, q: &[u8; 256]) -> Self {
        BlockQ6K {
            ql: std::array::from_fn(|i| {
                let first = i / 64 * 128 + i % 64;
                q[first] & 15 | (q[first + 64] & 15) << 4
            }),
            qh: std::array::from_fn(|i| {
                let first = i / 32 * 128 + i % 32;
                (0..4).fold(0, |byte, j| byte | (q[first + 32 * j] >> 4) << (2 * j))
            }),
            scales: scales.scales,
            d: scales.d,
        }
    }
}

impl<V: Simd> Decode<V> for BlockQ6K {
    #[inline(always)]
    unsafe fn decode<S: Sink<V>>(p: *const u8, sink: &mut S) {
        // SAFETY: `p` is valid for a block (trait contract), and all offsets are within it.
        unsafe {
            let d = V::splat_f16(p.add(offset_of!(Self, d)));
            let mut scales = [0.0; 16];
            for g in (0..16).step_by(V::LANES) {
                let scale = V::load_i8(p.add(offset_of!(Self, scales) + g));
                V::from_int(scale).mul(d).store(scales.as_mut_ptr().add(g));
            }
            let scales = in_memory(&scales);
            for half in 0..2 {
                for l in (0..32).step_by(V::LANES) {
                    let low = p.add(offset_of!(Self, ql) + half * 64 + l);
                    let (low0, low1) = (V::load_u8(low), V::load_u8(low.add(32)));
                    let high = V::load_u8(p.add(offset_of!(Self, qh) + half * 32 + l));
                    let q = [
                        V::or(V::and(low0, 15), V::and(V::shl(high, 4), 0x30)),
                        V::or(V::and(low1, 15), V::and(V::shl(high, 2), 0x30)),
                        V::or(V::shr(low0, 4), V::and(high, 0x30)),
                        V::or(V::shr(low1, 4), V::and(V::shr(high, 2), 0x30)),
                    ];
                    for j in 0..4 {
                        let scale = V::splat(scales[half * 8 + j * 2 + l / 16]);
                        let q = V::from_int(q[j]).sub(V::splat(32.0));
                        sink.put(half * 128 + j * 32 + l, q.mul(scale));
                    }
                }
            }
        }
    }
}

impl<V: IntSimd> Unpack<V> for BlockQ6K {
    const BITS: u32 = 6;
    const BY_16: bool = true;
    const ZERO: u8 = 32;

    #[inline(always)]
    unsafe fn scales(p: *const u8, _: usize, to: &mut Scales) {
        // SAFETY: `p` is valid for the chunk's blocks (trait contract), and all offsets are within a block.
        unsafe {
            let d = V::Float::splat_f16(p.add(offset_of!(Self, d)));
            let scales = p.add(offset_of!(Self, scales));
            set_halves::<V>(scales, d, &mut to.scales);
            set_halves::<V>(scales, d.mul(d.constant(-32.0)), &mut to.mins);
        }
    }

    #[inline(always)]
    unsafe fn values(p: *const u8, i: usize) -> V {
        // SAFETY: `p` is valid for the block of run `i` (trait contract), and all offsets are within it.
        unsafe {
            let (half, j) = (i / 4, i % 4);
            let low = V::load(p.add(offset_of!(Self, ql) + half * 64 + j % 2 * 32));
            let high = V::load(p.add(offset_of!(Self, qh) + half * 32));
            let low = if j < 2 { low } else { low.shr(4) };
            let high = move_bits(high, 2 * j, 4);
            low.and(V::splat(15)).or(high.and(V::splat(0x30)))
        }
    }
}

impl Interleaved for BlockQ6K {
    const FIELDS: &'static [Field] = &[
        field(128, Unit::Runs { bits: 4 }),
        field(64, Unit::Runs { bits: 2 }),
        field(16, Unit::One),
        field(2, Unit::Two),
    ];
}

impl<V: IntSimd> UnpackGroup<V> for BlockQ6K {
    #[inline(always)]
    unsafe fn group_scales(p: *const u8, _: usize, to: *mut GroupScales) {
        // SAFETY: `p` is valid for the chunk's blocks of a row group (trait contract), and all offsets are
        // within a block.
        unsafe {
            let d: V::Float = load_group_f16(p, offset_of!(Self, d));
            for half in 0..16 {
                let scale = V::Float::load_i8(p.add(GROUP_ROWS * (offset_of!(Self, scales) + half)));
                GroupScales::set(to, half, V::Float::from_int(scale).mul(d));
            }
        }
    }

    #[inline(always)]
    unsafe fn group_values(p: *const u8, i: usize, j: usize) -> V {
        // SAFETY: `p` is valid for the row group's block of run `i` (trait contract), and all offsets are
        // within it. In `ql`, runs 0 and 2 of a half share bytes in a file, and so do runs 1 and 3.
        unsafe {
            let ql = offset_of!(Self, ql) + i / 4 * 64 + i % 2 * 32 + i / 2 % 2 * 16;
            let qh = offset_of!(Self, qh) + i * 8;
            let high: V = group_word(p, qh + j % 2 * 4);
            group_nibbles::<V>(p, ql, j).or(move_bits(high, j / 2 * 2, 4).and(V::splat(0x30)))
        }
    }
}
