//! IQ1_S: 256 values as 32 points of a grid of 2048, a 3-bit scale and a shift for each 32.

use super::Half;
use super::grids::{self, Form, GridBlock, Group, grid_block};

/// A value is `d * (2 scale + 1) * (element +- 1/8)` with elements -1, 0 and 1. The two bytes of `qh` of a group of 32 are: the high
/// three bits of each of its four indices, the scale, and the sign of the shift.
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct BlockIQ1S {
    d: Half,
    qs: [[u8; 4]; 8],
    qh: [[u8; 2]; 8],
}
const _: () = assert!(size_of::<BlockIQ1S>() == 50);

impl GridBlock for BlockIQ1S {
    const FORM: Form = Form::Shifted;

    #[inline(always)]
    fn d(&self) -> Half {
        self.d
    }

    #[inline(always)]
    fn group(&self, g: usize) -> Group {
        let (qs, high) = (self.qs[g], u16::from_le_bytes(self.qh[g]));
        let scale = f32::from(2 * (high >> 12 & 7) + 1);
        Group {
            elements: std::array::from_fn(|l| grids::IQ1[usize::from(qs[l]) | usize::from(high >> (3 * l) & 7) << 8]),
            bits: if high >> 15 != 0 { u32::MAX } else { 0 },
            scales: [scale; 2],
        }
    }
}

grid_block!(BlockIQ1S, IQ1_S);
