//! Blocks: a tensor type's unit of storage, and the scalar code that defines the type.

use bytemuck::{Pod, Zeroable};

use crate::GgmlType;

/// A block of a tensor type. Blocks have alignment 1, so any bytes of the right length are blocks.
pub(crate) trait Block: Pod {
    /// Tensor type of the block.
    const TYPE: GgmlType;

    /// Decodes the block into `out`, which has one block's elements. This scalar decoder defines the type.
    fn dequantize(&self, out: &mut [f32]);
}

/// A block that can be encoded from floats.
pub(crate) trait Quantize: Block {
    /// Encodes `x`, which has one block's elements. Non-finite values yield an arbitrary block and never
    /// panic.
    fn quantize(x: &[f32]) -> Self;
}

/// Returns the size in bytes of `n` elements, a multiple of the block size.
#[inline(always)]
pub(crate) const fn bytes_of<B: Block>(n: usize) -> usize {
    n / B::TYPE.block_size() * B::TYPE.block_bytes()
}

/// An unaligned little-endian f16.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Pod, Zeroable)]
#[repr(transparent)]
pub struct Half(pub [u8; 2]);

impl Half {
    /// Converts the value to f32.
    pub fn get(self) -> f32 {
        half::f16::from_le_bytes(self.0).to_f32()
    }

    /// Returns the value with the other sign.
    pub(crate) fn negated(self) -> Half {
        let [low, high] = self.0;
        Half([low, high ^ 0x80])
    }

    /// Rounds to the nearest f16.
    pub fn new(x: f32) -> Half {
        Half(half::f16::from_f32(x).to_le_bytes())
    }
}
