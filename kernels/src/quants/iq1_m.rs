//! IQ1_M: 256 values as 32 points of a grid of 2048, a shift for each 8, a 3-bit scale for each 16.

use super::Half;
use super::grids::{self, Form, GridBlock, Group, grid_block};

/// A value is `d * (2 scale + 1) * (element +- 1/8)` with elements -1, 0 and 1. A nibble of `qh` is the high three bits of an index and
/// the sign of its shift. Each two bytes of `scales` are four scales and, in the top four bits, a part of `d`, lowest first.
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct BlockIQ1M {
    qs: [[u8; 4]; 8],
    qh: [[u8; 2]; 8],
    scales: [[u8; 2]; 4],
}
const _: () = assert!(size_of::<BlockIQ1M>() == 56);

impl GridBlock for BlockIQ1M {
    const FORM: Form = Form::Shifted;

    #[inline(always)]
    fn d(&self) -> Half {
        let [a, b, c, d] = self.scales.map(|scales| u16::from_le_bytes(scales) >> 12);
        Half((a | b << 4 | c << 8 | d << 12).to_le_bytes())
    }

    #[inline(always)]
    fn group(&self, g: usize) -> Group {
        let (qs, high) = (self.qs[g], u16::from_le_bytes(self.qh[g]));
        let scales = u16::from_le_bytes(self.scales[g / 2]) >> (g % 2 * 6);
        // The top bit of each nibble to the lowest of a byte, and then to all bits of the byte.
        let shifts =
            u32::from(high >> 3 & 1 | (high >> 7 & 1) << 8) | u32::from(high >> 11 & 1 | (high >> 15) << 8) << 16;
        Group {
            elements: std::array::from_fn(|l| grids::IQ1[usize::from(qs[l]) | usize::from(high >> (4 * l) & 7) << 8]),
            bits: shifts * 255,
            scales: [scales, scales >> 3].map(|scale| f32::from(2 * (scale & 7) + 1)),
        }
    }
}

grid_block!(BlockIQ1M, IQ1_M);
