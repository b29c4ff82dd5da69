//! IQ2_S: 256 values as 32 points of a grid of 1024, with explicit signs and a 4-bit scale per 16 values.

use super::grid_block::grid_block;
use super::grids::{self, BlockParts, Form, GridBlock, from_nibbles, index, nibbles};
use crate::layout::block::Half;

/// A block of 256 values `d * (scale + 1/2) / 4 * (+-element)`.
///
/// The low eight bits of an index are in `qs`, two more in the byte of `qh` for the group of 32. The scales
/// of a group are the nibbles of a byte.
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct BlockIQ2S {
    d: Half,
    qs: [[u8; 4]; 8],
    signs: [[u8; 4]; 8],
    qh: [u8; 8],
    scales: [u8; 8],
}
const _: () = assert!(size_of::<BlockIQ2S>() == 82);

impl GridBlock for BlockIQ2S {
    const FORM: Form = Form::Signed;
    const BY_16: bool = true;
    const LEVELS: &'static [u8] = &grids::IQ2_LEVELS;
    const LEVEL_SHIFT: u32 = 4;
    const FACTOR: f32 = 0.25;
    type Indices = ();

    #[inline(always)]
    fn d(&self) -> Half {
        self.d
    }

    #[inline(always)]
    fn scales(&self) -> [u8; 16] {
        bytemuck::cast(nibbles(self.scales))
    }

    #[inline(always)]
    fn bits(&self) -> [u32; 8] {
        self.signs.map(u32::from_le_bytes)
    }

    #[inline(always)]
    fn elements(&self, (): &(), g: usize) -> [u64; 4] {
        let (qs, high) = (self.qs[g], usize::from(self.qh[g]));
        std::array::from_fn(|l| grids::IQ2_S[usize::from(qs[l]) | (high >> (2 * l) & 3) << 8])
    }

    fn from_parts(parts: &BlockParts) -> Self {
        let indices = parts
            .elements
            .map(|points| points.map(|point| index(&grids::IQ2_S, point)));
        BlockIQ2S {
            d: parts.d,
            qs: indices.map(|group| group.map(|i| i as u8)),
            signs: parts.bits.map(u32::to_le_bytes),
            qh: indices.map(|group| (0..4).map(|l| ((group[l] >> 8) as u8) << (2 * l)).sum()),
            scales: from_nibbles(bytemuck::cast(parts.scales)),
        }
    }
}

grid_block!(BlockIQ2S, IQ2_S);
