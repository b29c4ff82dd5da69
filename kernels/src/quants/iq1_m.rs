//! IQ1_M: 256 values as 32 points of a grid of 2048, with a shift per 8 values and a 3-bit scale per 16.

use super::grid_block::grid_block;
use super::grids::{self, BlockParts, Form, GridBlock, index};
use crate::layout::block::Half;

/// A block of 256 values `d * (2 scale + 1) * (element +- 1/8)` with elements -1, 0, and 1.
///
/// A nibble of `qh` holds the high three bits of an index and the sign of its shift. Each two bytes of
/// `scales` hold four scales and, in the top four bits, a part of `d`, lowest first.
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
    const BITS: u32 = 5;
    const ZERO: u8 = 16;
    const BY_16: bool = true;
    const LEVELS: &'static [u8] = &grids::IQ1_LEVELS;
    const LEVEL_SHIFT: u32 = 0;
    const FACTOR: f32 = 2.0;
    type Indices = ();

    #[inline(always)]
    fn d(&self) -> Half {
        let [a, b, c, d] = self.scales.map(|scales| u16::from_le_bytes(scales) >> 12);
        Half((a | b << 4 | c << 8 | d << 12).to_le_bytes())
    }

    #[inline(always)]
    fn scales(&self) -> [u8; 16] {
        let packed = self.scales.map(u16::from_le_bytes);
        std::array::from_fn(|i| (packed[i / 4] >> (3 * (i % 4)) & 7) as u8)
    }

    #[inline(always)]
    fn bits(&self) -> [u32; 8] {
        self.qh.map(|[a, b]| {
            // Move the top bit of each nibble to its own byte, then replicate it to all bits of the byte.
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

    fn from_parts(parts: &BlockParts) -> Self {
        let indices = parts
            .elements
            .map(|points| points.map(|point| index(&grids::IQ1, point)));
        let qh = |g: usize| {
            let nibble = |l: usize| indices[g][l] >> 8 | (parts.bits[g] >> (8 * l) & 1) << 3;
            (0..4).map(|l| nibble(l) << (4 * l)).sum::<u32>() as u16
        };
        let d = u16::from_le_bytes(parts.d.0);
        let scales = |i: usize| {
            let scales: u16 = (0..4).map(|j| u16::from(parts.scales[4 * i + j]) << (3 * j)).sum();
            scales | (d >> (4 * i) & 15) << 12
        };
        BlockIQ1M {
            qs: indices.map(|group| group.map(|i| i as u8)),
            qh: std::array::from_fn(|g| qh(g).to_le_bytes()),
            scales: std::array::from_fn(|i| scales(i).to_le_bytes()),
        }
    }
}

grid_block!(BlockIQ1M, IQ1_M);
