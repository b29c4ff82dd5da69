//! F16: IEEE half-precision floats.

use crate::GgmlType;
use crate::layout::block::{Block, Half, Quantize};
use crate::layout::decode::{Encode, decode_plain};
use crate::simd::Simd;

/// Block of one little-endian f16.
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(transparent)]
pub struct BlockF16(Half);

impl Block for BlockF16 {
    const TYPE: GgmlType = GgmlType::F16;

    fn dequantize(&self, out: &mut [f32]) {
        out[0] = self.0.get();
    }
}

decode_plain!(BlockF16, V::load_f16);

impl Quantize for BlockF16 {
    fn quantize(x: &[f32]) -> Self {
        BlockF16(Half::new(x[0]))
    }
}

impl<V: Simd> Encode<V> for BlockF16 {
    #[inline(always)]
    unsafe fn encode(x: *const f32, out: *mut u8, n: usize) {
        // SAFETY: reads of `x` and writes of `out` end at `n` elements (trait contract).
        unsafe {
            let mut i = 0;
            while i + V::LANES <= n {
                V::load(x.add(i)).store_f16(out.add(2 * i));
                i += V::LANES;
            }
            if i < n {
                let mut rest = [0u8; 32];
                V::load_partial(x.add(i), n - i).store_f16(rest.as_mut_ptr());
                rest.as_ptr().copy_to_nonoverlapping(out.add(2 * i), 2 * (n - i));
            }
        }
    }
}
