//! NVFP4: 64 floats of 4 bits (E2M1) in 4 groups of 16, each with a scale of 8 bits (unsigned E4M3).

use super::Block;
use super::mxfp4::VALUES;
use crate::GgmlType;
use crate::generic::blocks::Decode;
use crate::simd::Simd;

/// A value of group `g` is `d[g] / 2 * VALUES[q]` with the doubled table of [`BlockMXFP4`](super::BlockMXFP4). Of the 8 bytes of a group,
/// byte `j` holds the q of values `j` (low) and `j + 8` (high).
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct BlockNVFP4 {
    d: [u8; 4],
    qs: [u8; 32],
}
const _: () = assert!(size_of::<BlockNVFP4>() == 36);

impl Block for BlockNVFP4 {
    const TYPE: GgmlType = GgmlType::NVFP4;

    fn dequantize(&self, out: &mut [f32]) {
        for ((group, qs), &d) in out.chunks_exact_mut(16).zip(self.qs.chunks_exact(8)).zip(&self.d) {
            let d = half_scale(d);
            let (low, high) = group.split_at_mut(8);
            for j in 0..8 {
                low[j] = f32::from(VALUES[usize::from(qs[j] & 15)]) * d;
                high[j] = f32::from(VALUES[usize::from(qs[j] >> 4)]) * d;
            }
        }
    }
}

/// Half the value of a scale: 4 bits of exponent (bias 7), 3 of mantissa. The format's NaN counts as zero.
fn half_scale(d: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(d >> 3 & 15), f32::from(d & 7));
    match d {
        0x7f => 0.0,
        _ if exponent == 0 => mantissa * 2f32.powi(-10),
        _ => (1.0 + mantissa / 8.0) * 2f32.powi(exponent - 8),
    }
}

impl<V: Simd> Decode<V> for BlockNVFP4 {}
