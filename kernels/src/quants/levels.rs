//! Row groups of the grid types (IQ1, IQ2, IQ3): grid points are looked up once, when rows are interleaved.
//!
//! Instead of grid indices, a group stores the 2- or 3-bit level of each element and its
//! [bit](GridBlock::bits). A few instructions then unpack 32 bytes, while each point of 4 or 8 elements would
//! need its own load. The weights take 1.2 to 2.1 times the memory of the file.
//!
//! ```text
//! file:    | index of a point of 8 elements | ..        matmul: one table load per point
//! group:   | level of each element, 2 bits  | bits |    matmul: shift, mask, one shuffle per 32 elements
//! ```

use std::mem::offset_of;

use super::grids::{BlockParts, Form, GridBlock, from_nibbles, nibbles};
use crate::layout::block::Half;
use crate::layout::groups::{
    Field, GroupScales, Rewrite, Unit, field, group_bit_pairs, group_nibbles, group_word, load_group_bytes,
    load_group_f16,
};
use crate::layout::runs::move_bits;
use crate::simd::{IntSimd, Simd};

/// A rewritten block of a type with three levels.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
struct PairBlock {
    d: Half,
    /// 4-bit scales, one per 16 elements.
    scales: [u8; 8],
    /// Levels of each group in the order of [`group_bit_pairs`]: bits `2 s` and `2 s + 1` of byte `b` are the
    /// level of element `8 s + b`.
    levels: [[u8; 8]; 8],
    /// Bits of each group: bit `e` belongs to element `e`.
    bits: [[u8; 4]; 8],
}

/// A rewritten block of a type with eight levels.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
struct NibbleBlock {
    d: Half,
    scales: [u8; 8],
    /// Codes of each group in the order of [`group_nibbles`]: the low nibbles are elements 0 to 15, the high
    /// nibbles 16 to 31. The top bit of a nibble is the element's bit; the other bits are its level.
    levels: [[[u8; 8]; 2]; 8],
}

const _: () = assert!(offset_of!(PairBlock, scales) == offset_of!(NibbleBlock, scales));

/// Returns the number of bits per level.
const fn level_bits<B: GridBlock>() -> usize {
    if B::LEVELS.len() <= 4 { 2 } else { 3 }
}

/// Returns the fields of a rewritten block.
pub(super) const fn fields<B: GridBlock>() -> &'static [Field] {
    const OF_PAIRS: &[Field] = &[
        field(2, Unit::Two),
        field(8, Unit::One),
        field(64, Unit::Four),
        field(32, Unit::Bits),
    ];
    const OF_NIBBLES: &[Field] = &[field(2, Unit::Two), field(8, Unit::One), field(128, Unit::Four)];
    if level_bits::<B>() == 2 { OF_PAIRS } else { OF_NIBBLES }
}

/// Returns the conversion between grid indices and levels.
pub(super) const fn rewrite<B: GridBlock>() -> Rewrite {
    Rewrite {
        to_group: to_levels::<B>,
        to_file: from_levels::<B>,
    }
}

/// The value 1 in each byte.
const BYTES: u64 = 0x0101_0101_0101_0101;

fn to_levels<B: GridBlock>(block: &[u8], to: &mut [u8]) {
    let parts = BlockParts::of(bytemuck::from_bytes::<B>(block));
    let (d, scales) = (parts.d, from_nibbles(bytemuck::cast(parts.scales)));
    let levels = parts.elements.map(|group| group.map(levels_of::<B>));
    if level_bits::<B>() == 2 {
        let block = PairBlock {
            d,
            scales,
            levels: levels.map(|[a, b, c, d]| (a | b << 2 | c << 4 | d << 6).to_le_bytes()),
            bits: parts.bits.map(u32::to_le_bytes),
        };
        to.copy_from_slice(bytemuck::bytes_of(&block));
    } else {
        let mut block = NibbleBlock {
            d,
            scales,
            levels: [[[0; 8]; 2]; 8],
        };
        for (g, to) in block.levels.iter_mut().enumerate() {
            let bits = parts.bits[g].to_le_bytes();
            let code = |i: usize| levels[g][i] | bits_to_bytes(bits[i]) << 3;
            *to = [code(0) | code(2) << 4, code(1) | code(3) << 4].map(u64::to_le_bytes);
        }
        to.copy_from_slice(bytemuck::bytes_of(&block));
    }
}

fn from_levels<B: GridBlock>(from: &[u8], to: &mut [u8]) {
    let mut parts = BlockParts {
        d: Half([0; 2]),
        scales: [0; 16],
        elements: [[0; 4]; 8],
        bits: [0; 8],
    };
    if level_bits::<B>() == 2 {
        let block: &PairBlock = bytemuck::from_bytes(from);
        (parts.d, parts.scales) = (block.d, bytemuck::cast(nibbles(block.scales)));
        for g in 0..8 {
            let levels = u64::from_le_bytes(block.levels[g]);
            parts.elements[g] = [0, 2, 4, 6].map(|at| elements_of::<B>(levels >> at & (3 * BYTES)));
            parts.bits[g] = u32::from_le_bytes(block.bits[g]);
        }
    } else {
        let block: &NibbleBlock = bytemuck::from_bytes(from);
        (parts.d, parts.scales) = (block.d, bytemuck::cast(nibbles(block.scales)));
        for g in 0..8 {
            let [a, b] = block.levels[g].map(u64::from_le_bytes);
            let codes = [a, b, a >> 4, b >> 4];
            parts.elements[g] = codes.map(|codes| elements_of::<B>(codes & (7 * BYTES)));
            parts.bits[g] = u32::from_le_bytes(codes.map(|codes| bits_of_bytes(codes >> 3 & BYTES)));
        }
    }
    to.copy_from_slice(bytemuck::bytes_of(&B::from_parts(&parts)));
}

/// Returns the level of each of 8 elements.
#[inline(always)]
fn levels_of<B: GridBlock>(elements: u64) -> u64 {
    const {
        let mut level = 0;
        while level < B::LEVELS.len() {
            assert!((B::LEVELS[level] >> B::LEVEL_SHIFT) as usize == level);
            level += 1;
        }
    }
    elements >> B::LEVEL_SHIFT & (7 * BYTES)
}

/// Returns the elements for 8 levels; the inverse of [`levels_of`].
fn elements_of<B: GridBlock>(levels: u64) -> u64 {
    let element = |level: u8| B::LEVELS.get(usize::from(level)).copied().unwrap_or_default();
    u64::from_le_bytes(levels.to_le_bytes().map(element))
}

/// Expands each bit of a mask to a byte.
#[inline(always)]
fn bits_to_bytes(bits: u8) -> u64 {
    let bits = u64::from(bits);
    let bits = (bits | bits << 28) & 0x0000_000f_0000_000f;
    let bits = (bits | bits << 14) & 0x0003_0003_0003_0003;
    (bits | bits << 7) & BYTES
}

/// Packs bytes to bits; the inverse of [`bits_to_bytes`].
fn bits_of_bytes(bytes: u64) -> u8 {
    (0..8).map(|i| ((bytes >> (8 * i)) as u8 & 1) << i).sum()
}

/// Implements [`UnpackGroup::group_scales`](crate::layout::groups::UnpackGroup::group_scales) for a
/// grid type.
///
/// # Safety
/// - The CPU supports `V`.
/// - `p` points to a rewritten block of a row group, and `to` is valid for writes.
#[inline(always)]
pub(super) unsafe fn group_scales<V: Simd, B: GridBlock>(p: *const u8, to: *mut GroupScales) {
    // SAFETY: `p` is valid for the chunk's blocks of a row group (trait contract), and offsets of the
    // rewritten block are within a block.
    unsafe {
        let factor = match B::FORM {
            Form::Signed => 1.0,
            Form::Shifted => 0.125,
        };
        let d: V = load_group_f16::<V>(p, 0).mul(V::splat(factor));
        for g in 0..8 {
            let packed = load_group_bytes::<V>(p, offset_of!(PairBlock, scales) + g);
            let scale = |bits: V::Int| {
                let scale = V::from_int(bits).add(V::splat(0.5));
                scale.mul(V::splat(B::FACTOR)).mul(d)
            };
            if B::BY_16 {
                GroupScales::set(to, 2 * g, scale(V::and(packed, 15)));
                GroupScales::set(to, 2 * g + 1, scale(V::shr(packed, 4)));
            } else {
                GroupScales::set(to, g, scale(V::and(packed, 15)));
            }
        }
    }
}

/// Implements [`UnpackGroup::group_values`](crate::layout::groups::UnpackGroup::group_values) for a
/// grid type.
///
/// # Safety
/// - The CPU supports `V`.
/// - `p` points to a rewritten block of a row group; `i < 8` and `j < 8`.
#[inline(always)]
pub(super) unsafe fn group_values<V: IntSimd, B: GridBlock>(p: *const u8, i: usize, j: usize) -> V {
    // SAFETY: `p` is valid for the row group's block of run `i` (trait contract), and offsets of the
    // rewritten block are within it.
    unsafe {
        let codes = if level_bits::<B>() == 2 {
            let bits = move_bits(group_word::<V>(p, offset_of!(PairBlock, bits) + 4 * i), j, 2).and(V::splat(4));
            group_bit_pairs::<V>(p, offset_of!(PairBlock, levels) + 8 * i, j).or(bits)
        } else {
            group_nibbles::<V>(p, offset_of!(NibbleBlock, levels) + 16 * i, j)
        };
        codes.lookup(&const { values::<B>() })
    }
}

/// Returns the integer for each level, without and with its bit: the signed element, or eight times the
/// shifted element.
const fn values<B: GridBlock>() -> [i8; 16] {
    let mut values = [0; 16];
    let mut i = 0;
    while i < B::LEVELS.len() {
        let level = B::LEVELS[i] as i8;
        let with_bit = i + (1 << level_bits::<B>());
        let (without, with) = match B::FORM {
            Form::Signed => (level, -level),
            Form::Shifted => (8 * level - 7, 8 * level - 9),
        };
        values[i] = without + B::ZERO as i8;
        values[with_bit] = with + B::ZERO as i8;
        i += 1;
    }
    values
}
