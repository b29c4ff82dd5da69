//! IQ2_XXS: 256 values as 32 points of a grid of 256, with an even number of negative signs and a 4-bit scale
//! per 32 values.

use super::grid_block::grid_block;
use super::grids::{self, BlockParts, Form, GridBlock, even_signs, index, without_eighth_signs};
use crate::layout::block::Half;

/// A block of 256 values `d * (scale + 1/2) / 4 * (+-element)`.
///
/// Each group of 32 has eight bytes of `qs`: four indices, then 28 bits of signs and the scale in the top
/// four bits.
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct BlockIQ2XXS {
    d: Half,
    qs: [[[u8; 4]; 2]; 8],
}
const _: () = assert!(size_of::<BlockIQ2XXS>() == 66);

impl BlockIQ2XXS {
    /// Returns the signs and the scale of a group.
    #[inline(always)]
    fn rest(&self, g: usize) -> u32 {
        u32::from_le_bytes(self.qs[g][1])
    }
}

impl GridBlock for BlockIQ2XXS {
    const FORM: Form = Form::Signed;
    const BY_16: bool = false;
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
        std::array::from_fn(|i| (self.rest(i / 2) >> 28) as u8)
    }

    #[inline(always)]
    fn bits(&self) -> [u32; 8] {
        std::array::from_fn(|g| even_signs(self.rest(g)))
    }

    #[inline(always)]
    fn elements(&self, (): &(), g: usize) -> [u64; 4] {
        self.qs[g][0].map(|i| grids::IQ2_XXS[usize::from(i)])
    }

    fn from_parts(parts: &BlockParts) -> Self {
        let qs = std::array::from_fn(|g| {
            let rest = without_eighth_signs(parts.bits[g]) | u32::from(parts.scales[2 * g]) << 28;
            let indices = parts.elements[g].map(|point| index(&grids::IQ2_XXS, point) as u8);
            [indices, rest.to_le_bytes()]
        });
        BlockIQ2XXS { d: parts.d, qs }
    }
}

grid_block!(BlockIQ2XXS, IQ2_XXS);
