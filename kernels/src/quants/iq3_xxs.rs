//! IQ3_XXS: 256 values as 64 points of a grid of 256, signs of even number, a 4-bit scale for each 32.

use super::Half;
use super::grids::{self, Form, GridBlock, Group, even_signs, grid_block, pair};

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

    #[inline(always)]
    fn d(&self) -> Half {
        self.d
    }

    #[inline(always)]
    fn group(&self, g: usize) -> Group {
        let points = self.qs[g].map(|i| grids::IQ3_XXS[usize::from(i)]);
        let rest = u32::from_le_bytes(self.rest[g]);
        let scale = ((rest >> 28) as f32 + 0.5) * 0.5;
        Group {
            elements: std::array::from_fn(|l| pair(points[2 * l], points[2 * l + 1])),
            bits: even_signs(rest),
            scales: [scale; 2],
        }
    }
}

grid_block!(BlockIQ3XXS, IQ3_XXS);
