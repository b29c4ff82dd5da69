//! Q1_0: 128 signs, one scale.

use super::{Block, Half};
use crate::GgmlType;
use crate::generic::blocks::{Decode, Sink};
use crate::simd::Simd;

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
