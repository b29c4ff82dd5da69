//! BF16: the upper half of a single-precision float.

use crate::GgmlType;
use crate::layout::block::{Block, Quantize};
use crate::layout::decode::{Encode, decode_plain};
use crate::simd::Simd;

/// The upper 16 bits of one f32, little-endian.
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(transparent)]
pub struct BlockBF16([u8; 2]);

impl Block for BlockBF16 {
    const TYPE: GgmlType = GgmlType::BF16;

    fn dequantize(&self, out: &mut [f32]) {
        out[0] = half::bf16::from_le_bytes(self.0).to_f32();
    }
}

decode_plain!(BlockBF16, V::load_bf16);

impl Quantize for BlockBF16 {
    fn quantize(x: &[f32]) -> Self {
        BlockBF16(half::bf16::from_f32(x[0]).to_le_bytes())
    }
}

impl<V: Simd> Encode<V> for BlockBF16 {
    #[inline(always)]
    unsafe fn encode(x: *const f32, out: *mut u8, n: usize) {
        // SAFETY: reads of `x` and writes of `out` end at `n` elements (trait contract).
        unsafe {
            let mut i = 0;
            while i + V::LANES <= n {
                V::load(x.add(i)).store_bf16(out.add(2 * i));
                i += V::LANES;
            }
            if i < n {
                let mut rest = [0u8; 32];
                V::load_partial(x.add(i), n - i).store_bf16(rest.as_mut_ptr());
                rest.as_ptr().copy_to_nonoverlapping(out.add(2 * i), 2 * (n - i));
            }
        }
    }
}
