//! Q2_0: 64 values of 2 bits, from -1 to 2, one scale.

use super::{Block, Half};
use crate::GgmlType;
use crate::generic::blocks::Decode;
use crate::simd::Simd;

/// Value `j` is `d * (q - 1)` with q in bits `2 (j % 4)` and up of byte `j / 4`.
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct BlockQ2_0 {
    d: Half,
    qs: [u8; 16],
}
const _: () = assert!(size_of::<BlockQ2_0>() == 18);

impl Block for BlockQ2_0 {
    const TYPE: GgmlType = GgmlType::Q2_0;

    fn dequantize(&self, out: &mut [f32]) {
        let d = self.d.get();
        for (j, v) in out.iter_mut().enumerate() {
            let q = self.qs[j / 4] >> (j % 4 * 2) & 3;
            *v = (f32::from(q) - 1.0) * d;
        }
    }
}

impl<V: Simd> Decode<V> for BlockQ2_0 {}
