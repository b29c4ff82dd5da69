//! TQ1_0: 256 values of -1, 0 or 1, five to a byte, one scale.

use super::{Block, Half};
use crate::GgmlType;
use crate::generic::blocks::Decode;
use crate::simd::Simd;

/// A byte `b` stands for the number 0.t0t1t2t3t4 to base 3, rounded up to 1/256; a value is `d * (t - 1)`. Digit `t` of byte `j` of
/// a run of bytes is value `t * run length + j` of its part: 32 bytes of `qs` for 160 values, 16 for 80, and `qh` for 16 (four digits).
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct BlockTQ1_0 {
    qs: [u8; 48],
    qh: [u8; 4],
    d: Half,
}
const _: () = assert!(size_of::<BlockTQ1_0>() == 54);

impl Block for BlockTQ1_0 {
    const TYPE: GgmlType = GgmlType::TQ1_0;

    fn dequantize(&self, out: &mut [f32]) {
        let d = self.d.get();
        let (first, rest) = out.split_at_mut(160);
        let (second, third) = rest.split_at_mut(80);
        for (run, out) in [(&self.qs[..32], first), (&self.qs[32..], second), (&self.qh, third)] {
            let mut power = 1u8;
            for values in out.chunks_exact_mut(run.len()) {
                for (v, &b) in values.iter_mut().zip(run) {
                    // Powers of 3 shift digits out of the byte; the next is the integer part of 3 times what is left.
                    let digit = (u16::from(b.wrapping_mul(power)) * 3) >> 8;
                    *v = (f32::from(digit) - 1.0) * d;
                }
                power = power.wrapping_mul(3);
            }
        }
    }
}

impl<V: Simd> Decode<V> for BlockTQ1_0 {}
