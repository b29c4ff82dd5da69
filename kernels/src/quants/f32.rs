//! F32: single-precision floats.

use crate::GgmlType;
use crate::layout::block::{Block, Quantize};
use crate::layout::decode::{Encode, decode_plain};
use crate::simd::Simd;

/// Block of one little-endian f32.
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(transparent)]
pub struct BlockF32([u8; 4]);

impl Block for BlockF32 {
    const TYPE: GgmlType = GgmlType::F32;

    fn dequantize(&self, out: &mut [f32]) {
        out[0] = f32::from_le_bytes(self.0);
    }
}

decode_plain!(BlockF32, load::<V>);

impl Quantize for BlockF32 {
    fn quantize(x: &[f32]) -> Self {
        BlockF32(x[0].to_le_bytes())
    }
}

impl<V: Simd> Encode<V> for BlockF32 {}

/// # Safety
/// - The CPU supports `V`.
/// - `p` is valid for reads of a register.
#[inline(always)]
unsafe fn load<V: Simd>(p: *const u8) -> V {
    // SAFETY: `p` is valid for reads of a register (function contract).
    unsafe { V::load(p.cast()) }
}
