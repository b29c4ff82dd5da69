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
    let (_, row, _) = checked(ty, k, rows.len(), group.len());
    for (r, row) in rows.chunks_exact_mut(row).enumerate() {
        deinterleave_row(ty, k, group, r, row);
    }
}

/// Row `r` of a group.
///
/// # Panics
/// If `group` is not [`interleaved_bytes`] long or `row` no row of it.
pub fn deinterleave_row(ty: GgmlType, k: usize, group: &[u8], r: usize, row: &mut [u8]) {
    let (fields, _, block) = checked(ty, k, GROUP_ROWS * row.len(), group.len());
    assert!(r < GROUP_ROWS, "row {r} of {GROUP_ROWS}");
    for (from, to) in group.chunks_exact(GROUP_ROWS * block).zip(row.chunks_exact_mut(block)) {
        let (mut from, mut to) = (from, to);
        for field in fields {
            let (part, other_parts) = from.split_at(GROUP_ROWS * field.bytes);
            let (of_row, rest) = to.split_at_mut(field.bytes);
            match field.unit {
                Unit::One => scatter::<1>(part, r, of_row, |unit| unit),
                Unit::Two => scatter::<2>(part, r, of_row, |unit| unit),
                Unit::Four => scatter::<4>(part, r, of_row, |unit| unit),
                Unit::Bits => scatter::<4>(part, r, of_row, transpose_back),
                Unit::Runs { bits } => scatter_runs(bits, part, r, of_row),
            }
            (from, to) = (other_parts, rest);
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

/// The field of row `r`, sorted by runs.
fn scatter_runs(bits: usize, from: &[u8], r: usize, to: &mut [u8]) {
    scatter::<4>(from, r, to, |unit| unit);
    for piece in to.as_chunks_mut::<PIECE>().0 {
        let mut words: [[u32; 1]; PIECE_WORDS] = bytemuck::cast(*piece);
        sort_by_runs(bits, &mut words);
        *piece = bytemuck::cast(words);
    }
}

/// The fields of a group's rows, sorted by runs.
fn gather_runs<'a>(bits: usize, from: impl Fn(usize) -> &'a [u8], to: &mut [u8]) {
    gather::<4>(from, to, |unit| unit);
    for pieces in to.as_chunks_mut::<{ GROUP_ROWS * PIECE }>().0 {
        let mut words: [[u32; GROUP_ROWS]; PIECE_WORDS] = bytemuck::cast(*pieces);
        sort_by_runs(bits, &mut words);
        *pieces = bytemuck::cast(words);
    }
}

/// Bytes that are sorted together: see [`Unit::Runs`].
const PIECE: usize = 32;
const PIECE_WORDS: usize = PIECE / 4;

/// [`Unit::Runs`] for a piece of each of some rows, given by words: a square of parts of bytes is transposed, so that this is its own inverse.
#[inline(always)]
fn sort_by_runs<const ROWS: usize>(bits: usize, words: &mut [[u32; ROWS]; PIECE_WORDS]) {
    // Halves of bytes that are half of the piece apart change places, then quarters, then eighths.
    exchange::<4, ROWS>(words);
    if bits <= 2 {
        exchange::<2, ROWS>(words);
    }
    if bits == 1 {
        exchange::<1, ROWS>(words);
    }
}

/// Bits of bytes that are `SHIFT` apart change places between words that are as many apart.
#[inline(always)]
fn exchange<const SHIFT: usize, const ROWS: usize>(words: &mut [[u32; ROWS]; PIECE_WORDS]) {
    let mask = u32::MAX / ((1 << SHIFT) + 1);
    for i in 0..PIECE_WORDS {
        if i & SHIFT == 0 {
            for row in 0..ROWS {
                let (low, high) = (words[i][row], words[i + SHIFT][row]);
                let changed = (low >> SHIFT ^ high) & mask;
                words[i][row] = low ^ changed << SHIFT;
                words[i + SHIFT][row] = high ^ changed;
            }
        }
    }
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
