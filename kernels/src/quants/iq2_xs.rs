//! IQ2_XS: 256 values as 32 points of a grid of 512, with an even number of negative signs and a 4-bit scale
//! per 16 values.

use super::grid_block::grid_block;
use super::grids::{self, BlockParts, Form, GridBlock, eighth_signs, from_nibbles, index, nibbles};
use crate::layout::block::Half;

/// A block of 256 values `d * (scale + 1/2) / 4 * (+-element)`.
///
/// Each 8 values have two bytes of `qs`: nine bits of index and seven of signs. The scales of a group of 32
/// are the nibbles of a byte.
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct BlockIQ2XS {
    d: Half,
    qs: [[[u8; 2]; 4]; 8],
    scales: [u8; 8],
}
const _: () = assert!(size_of::<BlockIQ2XS>() == 74);

impl GridBlock for BlockIQ2XS {
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
        self.qs.map(|qs| {
            let signs = u64::from_le_bytes(bytemuck::cast(qs)) >> 9 & 0x007f_007f_007f_007f;
            // Every other byte holds signs; remove the bytes between them.
            let signs = eighth_signs(signs);
            let signs = signs | signs >> 8;
            (signs & 0xffff) as u32 | (signs >> 16 & 0xffff_0000) as u32
        })
    }

    #[inline(always)]
    fn elements(&self, (): &(), g: usize) -> [u64; 4] {
        self.qs[g].map(|q| grids::IQ2_XS[usize::from(u16::from_le_bytes(q) & 511)])
    }

    fn from_parts(parts: &BlockParts) -> Self {
        let qs = std::array::from_fn(|g| {
            std::array::from_fn(|l| {
                let index = index(&grids::IQ2_XS, parts.elements[g][l]) as u16;
                let signs = (parts.bits[g] >> (8 * l) & 0x7f) as u16;
                (index | signs << 9).to_le_bytes()
            })
        });
        BlockIQ2XS {
            d: parts.d,
            qs,
            scales: from_nibbles(bytemuck::cast(parts.scales)),
        }
    }
}

grid_block!(BlockIQ2XS, IQ2_XS);
