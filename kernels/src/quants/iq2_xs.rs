//! IQ2_XS: 256 values as 32 points of a grid of 512, signs of even number, a 4-bit scale for each 16.

use super::Half;
use super::grids::{self, Form, GridBlock, Group, even_signs, grid_block, quarter_scales};

/// A value is `d * (scale + 1/2) / 4 * (+-element)`. Eight values have two bytes of `qs`: nine bits of index, seven of signs. Scales of
/// a group of 32 are the nibbles of a byte.
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

    #[inline(always)]
    fn d(&self) -> Half {
        self.d
    }

    #[inline(always)]
    fn group(&self, g: usize) -> Group {
        let qs = self.qs[g].map(|q| usize::from(u16::from_le_bytes(q)));
        let [a, b, c, d] = qs.map(|q| (q >> 9) as u32);
        Group {
            elements: qs.map(|q| grids::IQ2_XS[q & 511]),
            bits: even_signs(a | b << 7 | c << 14 | d << 21),
            scales: quarter_scales(self.scales[g]),
        }
    }
}

grid_block!(BlockIQ2XS, IQ2_XS);
