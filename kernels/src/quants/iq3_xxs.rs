//! IQ3_XXS: 256 values as 64 points of a grid of 256, with an even number of negative signs and a 4-bit scale
//! per 32 values.

use super::grid_block::grid_block;
use super::grids::{self, BlockParts, Form, GridBlock, even_signs, pair, without_eighth_signs};
use crate::layout::block::Half;

/// A block of 256 values `d * (scale + 1/2) / 2 * (+-element)`.
///
/// `rest` of a group of 32 is 28 bits of signs and the scale in the top four bits.
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct BlockIQ3XXS {
    d: Half,
    qs: [[u8; 8]; 8],
    rest: [[u8; 4]; 8],
}
const _: () = assert!(size_of::<BlockIQ3XXS>() == 98);

impl GridBlock for BlockIQ3XXS {
    const FORM: Form = Form::Signed;
    const BY_16: bool = false;
    const LEVELS: &'static [u8] = &grids::IQ3_XXS_LEVELS;
    const LEVEL_SHIFT: u32 = 3;
    const FACTOR: f32 = 0.5;
    type Indices = ();

    #[inline(always)]
    fn d(&self) -> Half {
        self.d
    }

    #[inline(always)]
    fn scales(&self) -> [u8; 16] {
        std::array::from_fn(|i| (u32::from_le_bytes(self.rest[i / 2]) >> 28) as u8)
    }

    #[inline(always)]
    fn bits(&self) -> [u32; 8] {
        self.rest.map(|rest| even_signs(u32::from_le_bytes(rest)))
    }

    #[inline(always)]
    fn elements(&self, (): &(), g: usize) -> [u64; 4] {
        let point = |i: usize| grids::IQ3_XXS[usize::from(self.qs[g][i])];
        std::array::from_fn(|l| pair(point(2 * l), point(2 * l + 1)))
    }

    fn from_parts(parts: &BlockParts) -> Self {
        let rest = |g: usize| without_eighth_signs(parts.bits[g]) | u32::from(parts.scales[2 * g]) << 28;
        BlockIQ3XXS {
            d: parts.d,
            qs: std::array::from_fn(|g| parts.half_indices(g, &grids::IQ3_XXS).map(|i| i as u8)),
            rest: std::array::from_fn(|g| rest(g).to_le_bytes()),
        }
    }
}

grid_block!(BlockIQ3XXS, IQ3_XXS);
