//! Q1_0: 128 signs, one scale.

use super::{Block, Half};
use crate::GgmlType;
use crate::generic::blocks::{Decode, Sink};
use crate::generic::integers::{Scales, Unpack, halves_of_blocks, set_scales};
use crate::simd::{IntSimd, Simd};

/// Value `j` is `d` where bit `j % 8` of byte `j / 8` is set, else `-d`.
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

impl<V: Simd> Decode<V> for BlockQ1_0 {
    #[inline(always)]
    unsafe fn decode<S: Sink<V>>(p: *const u8, sink: &mut S) {
        // SAFETY: the caller's promise; blocks have alignment 1.
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
    const BITS: u32 = 6;
    const SIGNED: bool = true;

    #[inline(always)]
    unsafe fn scales(p: *const u8, runs: usize, to: &mut Scales) {
        // SAFETY: the caller's promise.
        unsafe { set_scales(halves_of_blocks::<V, Self>(p, 0, runs), 0.0, to) }
    }

    #[inline(always)]
    unsafe fn values(p: *const u8, i: usize) -> V {
        // SAFETY: the caller's promise; blocks have alignment 1.
        unsafe {
            // -1 where the bit is clear, else 0 and then 1.
            let bits = u32::from_le_bytes((*p.cast::<Self>().add(i / 4)).qs[i % 4]);
            V::from_bits(!bits).or(V::splat(1))
        }
    }
}
