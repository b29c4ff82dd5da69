//! IQ1_M: 256 values as 32 points of a grid of 2048, a shift for each 8, a 3-bit scale for each 16.

use super::Half;
use super::grids::{self, Form, GridBlock, grid_block};

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
    const BITS: u32 = 6;
    type Indices = ();

    #[inline(always)]
    fn d(&self) -> Half {
        let [a, b, c, d] = self.scales.map(|scales| u16::from_le_bytes(scales) >> 12);
        Half((a | b << 4 | c << 8 | d << 12).to_le_bytes())
    }

    #[inline(always)]
    fn scales(&self) -> [f32; 16] {
        let packed = self.scales.map(u16::from_le_bytes);
        std::array::from_fn(|i| f32::from(2 * (packed[i / 4] >> (3 * (i % 4)) & 7) + 1))
    }

    #[inline(always)]
    fn bits(&self) -> [u32; 8] {
        self.qh.map(|[a, b]| {
            // The top bit of each nibble, moved to a byte of its own, then to all bits of the byte.
            let (a, b) = (u32::from(a), u32::from(b));
            let shifts = a >> 3 & 1 | a << 1 & 0x100 | b << 13 & 0x1_0000 | b << 17 & 0x100_0000;
            shifts * 255
        })
    }

    #[inline(always)]
    fn elements(&self, (): &(), g: usize) -> [u64; 4] {
        let (qs, high) = (self.qs[g], usize::from(u16::from_le_bytes(self.qh[g])));
        std::array::from_fn(|l| grids::IQ1[usize::from(qs[l]) | (high >> (4 * l) & 7) << 8])
    }
}

grid_block!(BlockIQ1M, IQ1_M);
