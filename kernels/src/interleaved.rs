//! Rows of weights in groups of [`GROUP_ROWS`], interleaved: what kernels read faster than the rows of a file.
//!
//! Each block of a group's rows becomes one block of the group, as long as all of them: byte `o` of the blocks goes to byte `8 o`, where a unit of
//! 1, 2 or 4 bytes of the first row is followed by that of the second, and so on. A register then holds 4 neighbouring bytes of each of 8 rows,
//! scales of 8 rows lie side by side, and nothing has to be moved between the lanes of a register. Where a byte of a file has bits of several runs of 32
//! weights, they are sorted first (`Unit::Runs`), so that the same few instructions unpack any run.

use crate::GgmlType;
use crate::quants::{self, Block, for_each_block};

/// Rows of a group.
pub const GROUP_ROWS: usize = 8;

/// A part of a block and how it is interleaved.
pub(crate) struct Field {
    /// Bytes of the part in a block.
    pub bytes: usize,
    /// What stays together.
    pub unit: Unit,
}

/// What stays together of a row.
#[derive(Clone, Copy)]
pub(crate) enum Unit {
    /// Single bytes: small scales.
    One,
    /// Two bytes: half floats.
    Two,
    /// Four bytes: the bits of four or more weights.
    Four,
    /// Four bytes with one bit for each of 32 weights, which are transposed: bit `4 j + b` becomes bit `j` of byte `b`, so that each byte has the bits of
    /// the weights that a byte of the other fields has.
    Bits,
    /// Four bytes, once the weights of each run are brought together: of 32 bytes, each with as many bits of weights of several runs, part `r` of byte
    /// `4 bits s + b` becomes part `s` of byte `4 bits r + b`. So each run has bytes of its own, in which its weights lie as in blocks of a single run.
    Runs {
        /// Bits of a weight: 4, 2 or 1.
        bits: usize,
    },
}

/// A field of `bytes` bytes in units of 1, 2 or 4.
pub(crate) const fn field(bytes: usize, unit: Unit) -> Field {
    Field { bytes, unit }
}

/// A block whose rows can be interleaved.
pub(crate) trait Interleaved: Block {
    /// Its parts in order, all of it.
    const FIELDS: &'static [Field];
}

/// The parts of a type's blocks, if it can be interleaved.
fn fields(ty: GgmlType) -> Option<&'static [Field]> {
    macro_rules! find {
        (() $( $block:ident $quantize:tt $unpack:tt [$($interleave:ident)?]; )*) => {
            match ty {
                $( $( <quants::$block as Block>::TYPE => find!(@ $interleave $block), )? )*
                _ => None,
            }
        };
        (@ interleave $block:ident) => { Some(<quants::$block as Interleaved>::FIELDS) };
    }
    for_each_block!(find!())
}

/// True if rows of `k` weights of this type can be interleaved.
pub fn can_interleave(ty: GgmlType, k: usize) -> bool {
    k > 0 && ty.row_bytes(k).is_some() && fields(ty).is_some()
}

/// Bytes of a group of [`GROUP_ROWS`] rows of `k` weights: as many as those of the rows.
///
/// # Panics
/// If such rows [cannot be interleaved](can_interleave).
pub fn interleaved_bytes(ty: GgmlType, k: usize) -> usize {
    assert!(can_interleave(ty, k), "{ty}: rows of {k} cannot be interleaved");
    GROUP_ROWS * ty.row_bytes(k).unwrap_or_default()
}

/// Interleaves a group of rows of `k` weights.
///
/// # Panics
/// If `rows` or `group` is not [`interleaved_bytes`] long.
pub fn interleave(ty: GgmlType, k: usize, rows: &[u8], group: &mut [u8]) {
    let (fields, row, block) = checked(ty, k, rows.len(), group.len());
    for (b, to) in group.chunks_exact_mut(GROUP_ROWS * block).enumerate() {
        let mut at = b * block;
        let mut to = to;
        for field in fields {
            let (part, rest) = to.split_at_mut(GROUP_ROWS * field.bytes);
            let from = |r: usize| &rows[r * row + at..][..field.bytes];
            match field.unit {
                Unit::One => gather::<1>(from, part, |unit| unit),
                Unit::Two => gather::<2>(from, part, |unit| unit),
                Unit::Four => gather::<4>(from, part, |unit| unit),
                Unit::Bits => gather::<4>(from, part, transpose_bits),
                Unit::Runs { bits } => gather_runs(bits, from, part),
            }
            at += field.bytes;
            to = rest;
        }
    }
}

/// The inverse of [`interleave`].
///
/// # Panics
/// If `rows` or `group` is not [`interleaved_bytes`] long.
pub fn deinterleave(ty: GgmlType, k: usize, group: &[u8], rows: &mut [u8]) {
    let (fields, row, block) = checked(ty, k, rows.len(), group.len());
    for (b, from) in group.chunks_exact(GROUP_ROWS * block).enumerate() {
        let mut at = b * block;
        let mut from = from;
        for field in fields {
            let (part, rest) = from.split_at(GROUP_ROWS * field.bytes);
            for r in 0..GROUP_ROWS {
                let to = &mut rows[r * row + at..][..field.bytes];
                match field.unit {
                    Unit::One => scatter::<1>(part, r, to, |unit| unit),
                    Unit::Two => scatter::<2>(part, r, to, |unit| unit),
                    Unit::Four => scatter::<4>(part, r, to, |unit| unit),
                    Unit::Bits => scatter::<4>(part, r, to, transpose_back),
                    Unit::Runs { bits } => scatter_runs(bits, part, r, to),
                }
            }
            at += field.bytes;
            from = rest;
        }
    }
}

/// The parts of a block, and the bytes of a row and of a block.
fn checked(ty: GgmlType, k: usize, rows: usize, group: usize) -> (&'static [Field], usize, usize) {
    let needed = interleaved_bytes(ty, k);
    assert!(
        rows == needed && group == needed,
        "{ty}: {rows} bytes of rows and {group} of a group, not {needed}"
    );
    let fields = fields(ty).unwrap_or_default();
    (fields, needed / GROUP_ROWS, ty.block_bytes())
}

/// Units of `N` bytes of a field of each row, side by side.
#[inline(always)]
fn gather<'a, const N: usize>(from: impl Fn(usize) -> &'a [u8], to: &mut [u8], f: impl Fn([u8; N]) -> [u8; N]) {
    let rows: [&[[u8; N]]; GROUP_ROWS] = std::array::from_fn(|r| from(r).as_chunks().0);
    let (units, _) = to.as_chunks_mut::<N>();
    for (i, units) in units.chunks_exact_mut(GROUP_ROWS).enumerate() {
        for (unit, row) in units.iter_mut().zip(&rows) {
            *unit = f(row[i]);
        }
    }
}

/// The field of row `r`.
#[inline(always)]
fn scatter<const N: usize>(from: &[u8], r: usize, to: &mut [u8], f: impl Fn([u8; N]) -> [u8; N]) {
    let (units, _) = from.as_chunks::<N>();
    for (to, units) in to.as_chunks_mut::<N>().0.iter_mut().zip(units.chunks_exact(GROUP_ROWS)) {
        *to = f(units[r]);
    }
}

/// Pieces of a field of each row, once the weights of each run are brought together.
fn gather_runs<'a>(bits: usize, from: impl Fn(usize) -> &'a [u8], to: &mut [u8]) {
    for (i, to) in to.chunks_exact_mut(GROUP_ROWS * PIECE).enumerate() {
        let pieces: [[u8; PIECE]; GROUP_ROWS] = std::array::from_fn(|r| exchange(bits, &from(r).as_chunks().0[i]));
        gather::<4>(|r| &pieces[r], to, |unit| unit);
    }
}

/// The field of row `r`.
fn scatter_runs(bits: usize, from: &[u8], r: usize, to: &mut [u8]) {
    let (pieces, _) = to.as_chunks_mut();
    for (to, from) in pieces.iter_mut().zip(from.chunks_exact(GROUP_ROWS * PIECE)) {
        let mut piece = [0; PIECE];
        scatter::<4>(from, r, &mut piece, |unit| unit);
        *to = exchange(bits, &piece);
    }
}

/// Bytes that are brought into another order together: see [`Unit::Runs`].
const PIECE: usize = 32;

/// [`Unit::Runs`] for one piece. It is its own inverse.
fn exchange(bits: usize, piece: &[u8; PIECE]) -> [u8; PIECE] {
    match bits {
        4 => exchange_parts::<16>(piece),
        2 => exchange_parts::<8>(piece),
        _ => exchange_parts::<4>(piece),
    }
}

/// Part `r` of the bytes of word `s` becomes part `s` of the bytes of word `r`, given the bytes of a word: four for each bit of a part.
#[inline(always)]
fn exchange_parts<const WORD: usize>(piece: &[u8; PIECE]) -> [u8; PIECE] {
    let (words, bits) = (PIECE / WORD, WORD / 4);
    let mask = (1u8 << bits) - 1;
    let mut out = [0; PIECE];
    for r in 0..words {
        for s in 0..words {
            for b in 0..WORD {
                out[r * WORD + b] |= (piece[s * WORD + b] >> (r * bits) & mask) << (s * bits);
            }
        }
    }
    out
}

/// Bit `4 j + b` becomes bit `8 b + j`.
fn transpose_bits(bytes: [u8; 4]) -> [u8; 4] {
    let bits = u32::from_le_bytes(bytes);
    let moved = (0..32).map(|i| (bits >> i & 1) << (i % 4 * 8 + i / 4));
    moved.sum::<u32>().to_le_bytes()
}

/// The inverse of [`transpose_bits`].
fn transpose_back(bytes: [u8; 4]) -> [u8; 4] {
    let bits = u32::from_le_bytes(bytes);
    let moved = (0..32).map(|i| (bits >> (i % 4 * 8 + i / 4) & 1) << i);
    moved.sum::<u32>().to_le_bytes()
}
