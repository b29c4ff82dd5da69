//! F16: IEEE half floats.

use super::{Block, Half, Quantize};
use crate::GgmlType;

/// One half float.
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(transparent)]
pub struct BlockF16(Half);

impl Block for BlockF16 {
    const TYPE: GgmlType = GgmlType::F16;

    fn dequantize(&self, out: &mut [f32]) {
        out[0] = self.0.get();
    }
}

impl Quantize for BlockF16 {
    fn quantize(x: &[f32]) -> Self {
        BlockF16(Half::new(x[0]))
    }
}
