//! IQ1_S: 256 values as 32 points of a grid of 2048, with a 3-bit scale and a shift per 32 values.

use super::grid_block::grid_block;
use super::grids::{self, BlockParts, Form, GridBlock, index};
use crate::layout::block::Half;

/// A block of 256 values `d * (2 scale + 1) * (element +- 1/8)` with elements -1, 0, and 1.
///
/// Each group of 32 values has two bytes of `qh`: the high three bits of its four indices, the scale, and the sign of
/// the shift.
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct BlockIQ1S {
    d: Half,
    qs: [[u8; 4]; 8],
    qh: [[u8; 2]; 8],
}
const _: () = assert!(size_of::<BlockIQ1S>() == 50);

impl BlockIQ1S {
    /// Returns the `qh` word of group `g`: everything except the low parts of the indices.
    #[inline(always)]
    fn high(&self, g: usize) -> u16 {
        u16::from_le_bytes(self.qh[g])
    }
}

impl GridBlock for BlockIQ1S {
    const FORM: Form = Form::Shifted;
    const BITS: u32 = 5;
    const ZERO: u8 = 16;
    const BY_16: bool = false;
    const LEVELS: &'static [u8] = &grids::IQ1_LEVELS;
    const LEVEL_SHIFT: u32 = 0;
    const FACTOR: f32 = 2.0;
    type Indices = ();

    #[inline(always)]
    fn d(&self) -> Half {
        self.d
    }

    #[inline(always)]
    fn scales(&self) -> [u8; 16] {
        std::array::from_fn(|i| (self.high(i / 2) >> 12 & 7) as u8)
    }

    #[inline(always)]
    fn bits(&self) -> [u32; 8] {
        // All sign bits of a group are equal.
        std::array::from_fn(|g| u32::from(self.high(g) >> 15).wrapping_neg())
    }

    #[inline(always)]
    fn elements(&self, (): &(), g: usize) -> [u64; 4] {
        let (qs, high) = (self.qs[g], usize::from(self.high(g)));
        std::array::from_fn(|l| grids::IQ1[usize::from(qs[l]) | (high >> (3 * l) & 7) << 8])
    }

    fn from_parts(parts: &BlockParts) -> Self {
        let indices = parts
            .elements
            .map(|points| points.map(|point| index(&grids::IQ1, point)));
        let qh = |g: usize| {
            let high: u32 = (0..4).map(|l| indices[g][l] >> 8 << (3 * l)).sum();
            (high | u32::from(parts.scales[2 * g]) << 12 | (parts.bits[g] & 1) << 15) as u16
        };
        BlockIQ1S {
            d: parts.d,
            qs: indices.map(|group| group.map(|i| i as u8)),
            qh: std::array::from_fn(|g| qh(g).to_le_bytes()),
        }
    }
}

grid_block!(BlockIQ1S, IQ1_S);
