//! Blocks made from scales and the indices of their elements, as encoders find them.

use super::block::{Block, Half};

/// Scales and minimums of a block, both as multiples of a common factor.
#[derive(Clone, Copy)]
pub(crate) struct Lines<const G: usize> {
    pub d: Half,
    pub dmin: Half,
    pub scales: [u8; G],
    pub mins: [u8; G],
}

/// Integer scales of a block and their common factor.
#[derive(Clone, Copy)]
pub(crate) struct IntScales<const G: usize> {
    pub d: Half,
    pub scales: [i8; G],
}

/// Integer scales of 16 groups, their common factor, and flags of the groups that use the shifted table.
#[derive(Clone, Copy)]
pub(crate) struct ShiftedScales {
    pub d: Half,
    pub scales: [i8; 16],
    pub shifted: u16,
}

/// Odd scales of the 8 groups of a block, the factor of its row, and which groups use the shifted table.
#[derive(Clone, Copy)]
pub(crate) struct RowScales {
    pub d: f32,
    pub scales: [i8; 8],
    pub shifted: [bool; 8],
}

/// A block of 256 elements with scales and minimums, made from the indices of its elements.
pub(crate) trait FromLines<const G: usize>: Block {
    fn from_lines(lines: &Lines<G>, q: &[u8; 256]) -> Self;
}

/// A block of 256 elements with scales, made from the indices of its elements.
pub(crate) trait FromScales<const G: usize>: Block {
    fn from_scales(scales: &IntScales<G>, q: &[u8; 256]) -> Self;
}

/// A block of 256 elements with scales and a choice of two tables, made from the indices of its elements.
pub(crate) trait FromShifted: Block {
    fn from_shifted(scales: &ShiftedScales, q: &[u8; 256]) -> Self;
}

/// A block with one scale, made from the indices of its elements.
pub(crate) trait FromScale: Block {
    fn from_scale(d: Half, q: &[u8]) -> Self;
}

/// A block with one scale and one minimum, made from the indices of its elements.
pub(crate) trait FromLine: Block {
    fn from_line(d: Half, m: Half, q: &[u8]) -> Self;
}
