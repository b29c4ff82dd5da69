//! IQ3_S: 256 values as 64 points of a grid of 512, with explicit signs and a 4-bit scale per 32 values.

use super::grid_block::grid_block;
use super::grids::{self, BlockParts, Form, GridBlock, from_nibbles, nibbles, pair};
use crate::layout::block::Half;

/// A block of 256 values `d * (2 scale + 1) * (+-element)`.
///
/// The low eight bits of an index are in `qs`. The ninth bit of index `i` of a group of 32 is bit `i` of the
/// group's byte of `qh`. The scales are the nibbles of `scales`.
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct BlockIQ3S {
    d: Half,
    qs: [[u8; 8]; 8],
    qh: [u8; 8],
    signs: [[u8; 4]; 8],
    scales: [u8; 4],
}
const _: () = assert!(size_of::<BlockIQ3S>() == 110);

impl GridBlock for BlockIQ3S {
    const FORM: Form = Form::Signed;
    const BITS: u32 = 5;
    const ZERO: u8 = 16;
    const BY_16: bool = false;
    const LEVELS: &'static [u8] = &grids::IQ3_S_LEVELS;
    const LEVEL_SHIFT: u32 = 1;
    const FACTOR: f32 = 2.0;
    type Indices = [[u16; 8]; 8];

    #[inline(always)]
    fn d(&self) -> Half {
        self.d
    }

    #[inline(always)]
    fn scales(&self) -> [u8; 16] {
        let scales = nibbles(self.scales);
        std::array::from_fn(|i| scales[i / 4][i / 2 % 2])
    }

    #[inline(always)]
    fn bits(&self) -> [u32; 8] {
        self.signs.map(u32::from_le_bytes)
    }

    #[inline(always)]
    fn indices(&self) -> [[u16; 8]; 8] {
        std::array::from_fn(|g| {
            let high = u16::from(self.qh[g]);
            std::array::from_fn(|i| u16::from(self.qs[g][i]) | (high >> i & 1) << 8)
        })
    }

    #[inline(always)]
    fn elements(&self, indices: &[[u16; 8]; 8], g: usize) -> [u64; 4] {
        let point = |i: usize| grids::IQ3_S[usize::from(indices[g][i] & 511)];
        std::array::from_fn(|l| pair(point(2 * l), point(2 * l + 1)))
    }

    fn from_parts(parts: &BlockParts) -> Self {
        let indices: [_; 8] = std::array::from_fn(|g| parts.half_indices(g, &grids::IQ3_S));
        let scales = |i: usize| [parts.scales[4 * i], parts.scales[4 * i + 2]];
        BlockIQ3S {
            d: parts.d,
            qs: indices.map(|group| group.map(|i| i as u8)),
            qh: indices.map(|group| (0..8).map(|i| ((group[i] >> 8) as u8) << i).sum()),
            signs: parts.bits.map(u32::to_le_bytes),
            scales: from_nibbles(std::array::from_fn(scales)),
        }
    }
}

grid_block!(BlockIQ3S, IQ3_S);
