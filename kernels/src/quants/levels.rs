//! Groups of rows of the types that have grids: what kernels look up one by one in rows of a file is looked up once, when rows are interleaved.
//!
//! Instead of the index of a point a group holds the level of each element, of 2 bits or 3, and its [bit](GridBlock::bits): a few instructions unpack
//! 32 bytes of them, where each point of 4 or 8 elements takes a load of its own. Weights take 1.2 to 2.1 times as much memory as in a file.

use std::mem::offset_of;

use super::Half;
use super::grids::{Form, GridBlock, Parts, from_nibbles, nibbles};
use crate::generic::interleaved8::{
    GroupScales, bytes_of_group, halves_of_group, nibbles_of_group, pairs_of_group, word_of_group,
};
use crate::generic::integers::move_bits;
use crate::interleaved::{Field, Rewrite, Unit, field};
use crate::simd::{IntSimd, Simd};

/// A block with three levels.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
struct Pairs {
    d: Half,
    /// Nibbles, one for each 16 elements.
    scales: [u8; 8],
    /// Of each group, as [`pairs_of_group`] wants them: bits `2 s` and `2 s + 1` of byte `b` are the level of element `8 s + b`.
    levels: [[u8; 8]; 8],
    /// Of each group: bit `e` is that of element `e`.
    bits: [[u8; 4]; 8],
}

/// A block with eight levels.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
struct Nibbles {
    d: Half,
    scales: [u8; 8],
    /// Of each group, as [`nibbles_of_group`] wants them: the low nibbles are elements 0 to 15, the high ones 16 to 31. The highest bit of a nibble is the
    /// element's bit, the others are its level.
    levels: [[[u8; 8]; 2]; 8],
}

const _: () = assert!(offset_of!(Pairs, scales) == offset_of!(Nibbles, scales));

/// Bits of a level.
const fn level_bits<B: GridBlock>() -> usize {
    if B::LEVELS.len() <= 4 { 2 } else { 3 }
}

/// The parts of a rewritten block.
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

/// Rewrites blocks with levels in place of indices, and back.
pub(super) const fn rewrite<B: GridBlock>() -> Rewrite {
    Rewrite {
        forth: to_levels::<B>,
        back: from_levels::<B>,
    }
}

/// 1 in each byte.
const BYTES: u64 = 0x0101_0101_0101_0101;

fn to_levels<B: GridBlock>(block: &[u8], to: &mut [u8]) {
    let parts = Parts::of(bytemuck::from_bytes::<B>(block));
    let (d, scales) = (parts.d, from_nibbles(bytemuck::cast(parts.scales)));
    let levels = parts.elements.map(|group| group.map(levels_of::<B>));
    if level_bits::<B>() == 2 {
        let block = Pairs {
            d,
            scales,
            levels: levels.map(|[a, b, c, d]| (a | b << 2 | c << 4 | d << 6).to_le_bytes()),
            bits: parts.bits.map(u32::to_le_bytes),
        };
        to.copy_from_slice(bytemuck::bytes_of(&block));
    } else {
        let mut block = Nibbles {
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
    let mut parts = Parts {
        d: Half([0; 2]),
        scales: [0; 16],
        elements: [[0; 4]; 8],
        bits: [0; 8],
    };
    if level_bits::<B>() == 2 {
        let block: &Pairs = bytemuck::from_bytes(from);
        (parts.d, parts.scales) = (block.d, bytemuck::cast(nibbles(block.scales)));
        for g in 0..8 {
            let levels = u64::from_le_bytes(block.levels[g]);
            parts.elements[g] = [0, 2, 4, 6].map(|at| elements_of::<B>(levels >> at & (3 * BYTES)));
            parts.bits[g] = u32::from_le_bytes(block.bits[g]);
        }
    } else {
        let block: &Nibbles = bytemuck::from_bytes(from);
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

/// The level of each of 8 elements.
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

/// The inverse of [`levels_of`].
fn elements_of<B: GridBlock>(levels: u64) -> u64 {
    let element = |level: u8| B::LEVELS.get(usize::from(level)).copied().unwrap_or_default();
    u64::from_le_bytes(levels.to_le_bytes().map(element))
}

/// Each bit as a byte.
#[inline(always)]
fn bits_to_bytes(bits: u8) -> u64 {
    let bits = u64::from(bits);
    let bits = (bits | bits << 28) & 0x0000_000f_0000_000f;
    let bits = (bits | bits << 14) & 0x0003_0003_0003_0003;
    (bits | bits << 7) & BYTES
}

/// The inverse of [`bits_to_bytes`].
fn bits_of_bytes(bytes: u64) -> u8 {
    (0..8).map(|i| ((bytes >> (8 * i)) as u8 & 1) << i).sum()
}

/// [`UnpackGroup::group_scales`](crate::generic::interleaved8::UnpackGroup::group_scales) of such a type.
///
/// # Safety
/// As for that function.
#[inline(always)]
pub(super) unsafe fn group_scales<V: Simd, B: GridBlock>(p: *const u8, to: *mut GroupScales) {
    // SAFETY: the caller's promise; offsets are those of a block with levels.
    unsafe {
        let factor = match B::FORM {
            Form::Signed => 1.0,
            Form::Shifted => 0.125,
        };
        let d: V = halves_of_group::<V>(p, 0).mul(V::splat(factor));
        for g in 0..8 {
            let packed = bytes_of_group::<V>(p, offset_of!(Pairs, scales) + g);
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

/// [`UnpackGroup::group_values`](crate::generic::interleaved8::UnpackGroup::group_values) of such a type.
///
/// # Safety
/// As for that function.
#[inline(always)]
pub(super) unsafe fn group_values<V: IntSimd, B: GridBlock>(p: *const u8, i: usize, j: usize) -> V {
    // SAFETY: the caller's promise; offsets are those of a block with levels.
    unsafe {
        let codes = if level_bits::<B>() == 2 {
            let bits = move_bits(word_of_group::<V>(p, offset_of!(Pairs, bits) + 4 * i), j, 2).and(V::splat(4));
            pairs_of_group::<V>(p, offset_of!(Pairs, levels) + 8 * i, j).or(bits)
        } else {
            nibbles_of_group::<V>(p, offset_of!(Nibbles, levels) + 16 * i, j)
        };
        codes.lookup(&const { values::<B>() })
    }
}

/// The integer that a level and a bit above it stand for: elements, or eight times what is shifted.
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
