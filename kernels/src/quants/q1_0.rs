//! Q1_0: 128 signs with one scale.

use std::mem::offset_of;

use crate::GgmlType;
use crate::layout::assemble::FromScale;
use crate::layout::block::{Block, Half};
use crate::layout::decode::{Decode, Sink};
use crate::layout::groups::{Field, Interleaved, Unit, UnpackGroup, block_at_run, field, group_word};
use crate::layout::runs::{Unpack, move_bits};
use crate::simd::{IntSimd, Simd};

/// A block of 128 values: value `j` is `d` if bit `j % 8` of byte `j / 8` is set, and `-d` otherwise.
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct BlockQ1_0 {
    d: Half,
    qs: [[u8; 4]; 4],
}
const _: () = assert!(size_of::<BlockQ1_0>() == 18);

impl Block for BlockQ1_0 {
    const TYPE: GgmlType = GgmlType::Q1_0;

    fn dequantize(&self, out: &mut [f32]) {
        let d = self.d.get();
        for (j, v) in out.iter_mut().enumerate() {
            *v = if self.qs[j / 32][j / 8 % 4] >> (j % 8) & 1 != 0 {
                d
            } else {
                -d
            };
        }
    }
}

impl FromScale for BlockQ1_0 {
    fn from_scale(d: Half, q: &[u8]) -> Self {
        BlockQ1_0 {
            d,
            qs: std::array::from_fn(|i| {
                std::array::from_fn(|k| (0..8).fold(0, |byte, j| byte | q[32 * i + 8 * k + j] << j))
            }),
        }
    }
}

impl<V: Simd> Decode<V> for BlockQ1_0 {
    #[inline(always)]
    unsafe fn decode<S: Sink<V>>(p: *const u8, sink: &mut S) {
        // SAFETY: `p` is valid for a block (trait contract), and all offsets are within it.
        unsafe {
            let d = V::splat_f16(p);
            for (i, bits) in (*p.cast::<Self>()).qs.into_iter().enumerate() {
                let negative = !u32::from_le_bytes(bits);
                for at in (0..32).step_by(V::LANES) {
                    sink.put(i * 32 + at, d.negate_where(V::mask(negative, at)));
                }
            }
        }
    }
}

impl<V: IntSimd> Unpack<V> for BlockQ1_0 {
    const BITS: u32 = 2;
    const ZERO: u8 = 1;

    #[inline(always)]
    unsafe fn values(p: *const u8, i: usize) -> V {
        // SAFETY: `p` is valid for the block of run `i` (trait contract), and all offsets are within it.
        unsafe {
            // Each value is 2 if its bit is set, otherwise 0.
            let bits = u32::from_le_bytes((*p.cast::<Self>().add(i / 4)).qs[i % 4]);
            V::from_bits(bits).and(V::splat(2))
        }
    }
}

impl Interleaved for BlockQ1_0 {
    const FIELDS: &'static [Field] = &[field(2, Unit::Two), field(16, Unit::Bits)];
}

impl<V: IntSimd> UnpackGroup<V> for BlockQ1_0 {
    #[inline(always)]
    unsafe fn group_values(p: *const u8, i: usize, j: usize) -> V {
        // SAFETY: `p` is valid for the row group's block of run `i` (trait contract), and all offsets are
        // within it.
        unsafe {
            let block = block_at_run::<Self>(p, i);
            let bits: V = group_word(block, offset_of!(Self, qs) + i % 4 * 4);
            move_bits(bits, j, 1).and(V::splat(2))
        }
    }
}
