//! Q8_0: 32 signed bytes, one scale.

use super::{Block, Half, Quantize, inverse, signed_max};
use crate::GgmlType;
use crate::generic::blocks::{Decode, Encode};
use crate::simd::Simd;

/// Value `j` is `d * q`.
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct BlockQ8_0 {
    d: Half,
    qs: [i8; 32],
}
const _: () = assert!(size_of::<BlockQ8_0>() == 34);

impl Block for BlockQ8_0 {
    const TYPE: GgmlType = GgmlType::Q8_0;

    fn dequantize(&self, out: &mut [f32]) {
        let d = self.d.get();
        for (v, &q) in out.iter_mut().zip(&self.qs) {
            *v = f32::from(q) * d;
        }
    }
}

impl<V: Simd> Decode<V> for BlockQ8_0 {}

impl Quantize for BlockQ8_0 {
    fn quantize(x: &[f32]) -> Self {
        let d = Half::new(signed_max(x).abs() / 127.0);
        let inv = inverse(d.get());
        let q = |v: f32| (v * inv).round_ties_even().clamp(-127.0, 127.0) as i8;
        BlockQ8_0 {
            d,
            qs: std::array::from_fn(|j| q(x[j])),
        }
    }
}

impl<V: Simd> Encode<V> for BlockQ8_0 {}
