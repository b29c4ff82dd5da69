//! Q6_K: 256 values of 6 bits around 32 in 16 groups of 16, each with an 8-bit scale.

use super::{Block, Half};
use crate::GgmlType;
use crate::generic::blocks::Decode;
use crate::simd::Simd;

/// A value of group `g` is `d * scales[g] * (q - 32)`. Each half of 128 values has 64 bytes of `ql` and 32 of `qh`: value
/// `32 j + l` of the half has its low 4 bits in byte `32 (j % 2) + l` of `ql` (low nibble for `j < 2`), its high 2 bits in
/// bits `2j` and `2j + 1` of byte `l` of `qh`.
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

impl<V: Simd> Decode<V> for BlockQ6K {}
