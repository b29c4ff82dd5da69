//! TQ2_0: 256 values of 2 bits around 1, one scale.

use super::{Block, Half};
use crate::GgmlType;
use crate::generic::blocks::Decode;
use crate::simd::Simd;

/// A value is `d * (q - 1)`; bits lie as in [`BlockQ2K`](super::BlockQ2K).
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct BlockTQ2_0 {
    qs: [u8; 64],
    d: Half,
}
const _: () = assert!(size_of::<BlockTQ2_0>() == 66);

impl Block for BlockTQ2_0 {
    const TYPE: GgmlType = GgmlType::TQ2_0;

    fn dequantize(&self, out: &mut [f32]) {
        let d = self.d.get();
        for (i, values) in out.chunks_exact_mut(32).enumerate() {
            for (v, q) in values.iter_mut().zip(&self.qs[i / 4 * 32..]) {
                *v = (f32::from(q >> (i % 4 * 2) & 3) - 1.0) * d;
            }
        }
    }
}

impl<V: Simd> Decode<V> for BlockTQ2_0 {}
