//! IQ3_XXS: 256 values as 64 points of a grid of 256, signs of even number, a 4-bit scale for each 32.

use super::Half;
use super::grids::{self, Form, GridBlock, even_signs, grid_block, pair};

/// A value is `d * (scale + 1/2) / 2 * (+-element)`. `rest` of a group of 32 is 28 bits of signs and the scale in the top four.
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
    type Indices = ();

    #[inline(always)]
    fn d(&self) -> Half {
        self.d
    }

    #[inline(always)]
    fn scales(&self) -> [f32; 16] {
        std::array::from_fn(|i| ((u32::from_le_bytes(self.rest[i / 2]) >> 28) as f32 + 0.5) * 0.5)
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
}

grid_block!(BlockIQ3XXS, IQ3_XXS);
