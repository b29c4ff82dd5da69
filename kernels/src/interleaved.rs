//! Rows of weights in groups of [`GROUP_ROWS`], interleaved: what kernels read faster than the rows of a file.
//!
//! Each block of a group's rows becomes one block of the group, as long as all of them: byte `o` of the blocks goes to byte `8 o`, where a unit of
//! 1, 2 or 4 bytes of the first row is followed by that of the second, and so on. A register then holds 4 neighbouring bytes of each of 8 rows,
//! scales of 8 rows lie side by side, and nothing has to be moved between the lanes of a register. Where a byte of a file has bits of several runs of 32
//! weights, they are sorted first (`Unit::Runs`), so that the same few instructions unpack any run. Blocks that hold indices of a grid are rewritten first, with
//! what the grid has there, and digits to base 3 as two bits each: only such groups take more bytes than the rows.

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
    /// Its parts in order, all of it; or those of what it is rewritten to.
    const FIELDS: &'static [Field];

    /// How blocks are rewritten before they are interleaved, if they are.
    const REWRITE: Option<Rewrite> = None;

    /// Bytes of a block in a group.
    const BLOCK_BYTES: usize = {
        let (mut bytes, mut i) = (0, 0);
        while i < Self::FIELDS.len() {
            bytes += Self::FIELDS[i].bytes;
            i += 1;
        }
        assert!(bytes <= MAX_BLOCK && (Self::REWRITE.is_some() || bytes == size_of::<Self>()));
        bytes
    };
}

/// Bytes of `n` weights of each of a group's rows: whole blocks.
#[inline(always)]
pub(crate) const fn bytes_in_group<B: Interleaved>(n: usize) -> usize {
    GROUP_ROWS * (n / B::TYPE.block_size() * B::BLOCK_BYTES)
}

/// Most bytes of a block in a group.
const MAX_BLOCK: usize = 256;

/// How the blocks of a type are written in another way, and back: with the same weights, and the bytes that encoders of the type write for them.
#[derive(Clone, Copy)]
pub(crate) struct Rewrite {
    /// From a block of a file.
    pub forth: fn(&[u8], &mut [u8]),
    /// To a block of a file.
    pub back: fn(&[u8], &mut [u8]),
}

/// How a type is interleaved.
#[derive(Clone, Copy)]
struct Form {
    fields: &'static [Field],
    rewrite: Option<Rewrite>,
    /// Bytes of a block in a group.
    block_bytes: usize,
}

/// How a type is interleaved, if it can be.
fn form(ty: GgmlType) -> Option<Form> {
    macro_rules! find {
        (() $( $block:ident $quantize:tt $unpack:tt [$($interleave:ident)?]; )*) => {
            match ty {
                $( $( <quants::$block as Block>::TYPE => find!(@ $interleave $block), )? )*
                _ => None,
            }
        };
        (@ interleave $block:ident) => { Some(Form {
            fields: <quants::$block as Interleaved>::FIELDS,
            rewrite: <quants::$block as Interleaved>::REWRITE,
            block_bytes: <quants::$block as Interleaved>::BLOCK_BYTES,
        }) };
    }
    for_each_block!(find!())
}

/// True if rows of `k` weights of this type can be interleaved.
pub fn can_interleave(ty: GgmlType, k: usize) -> bool {
    k > 0 && ty.row_bytes(k).is_some() && form(ty).is_some()
}

/// Bytes of a group of [`GROUP_ROWS`] rows of `k` weights: as many as those of the rows, but for TQ1_0 and the types with grids.
///
/// # Panics
/// If such rows [cannot be interleaved](can_interleave).
pub fn interleaved_bytes(ty: GgmlType, k: usize) -> usize {
    assert!(can_interleave(ty, k), "{ty}: rows of {k} cannot be interleaved");
    let block_bytes = form(ty).map_or(0, |form| form.block_bytes);
    GROUP_ROWS * (k / ty.block_size() * block_bytes)
}

/// Interleaves a group of rows of `k` weights.
///
/// # Panics
/// If `rows` is not as long as such rows are in a file, or `group` not [`interleaved_bytes`] long.
pub fn interleave(ty: GgmlType, k: usize, rows: &[u8], group: &mut [u8]) {
    let form = checked(ty, k, rows.len(), group.len());
    let (row, block) = (rows.len() / GROUP_ROWS, ty.block_bytes());
    let mut rewritten = [[0; MAX_BLOCK]; GROUP_ROWS];
    for (b, to) in group.chunks_exact_mut(GROUP_ROWS * form.block_bytes).enumerate() {
        let of_row = |r: usize| &rows[r * row + b * block..][..block];
        if let Some(rewrite) = form.rewrite {
            for (r, to) in rewritten.iter_mut().enumerate() {
                (rewrite.forth)(of_row(r), &mut to[..form.block_bytes]);
            }
            interleave_blocks(form.fields, |r| &rewritten[r], to);
        } else {
            interleave_blocks(form.fields, of_row, to);
        }
    }
}

/// Interleaves a block of each row.
#[inline(always)]
fn interleave_blocks<'a>(fields: &[Field], of_row: impl Fn(usize) -> &'a [u8], mut to: &mut [u8]) {
    let mut at = 0;
    for field in fields {
        let (part, rest) = to.split_at_mut(GROUP_ROWS * field.bytes);
        let from = |r: usize| &of_row(r)[at..][..field.bytes];
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

/// The inverse of [`interleave`].
///
/// # Panics
/// As for [`interleave`].
pub fn deinterleave(ty: GgmlType, k: usize, group: &[u8], rows: &mut [u8]) {
    checked(ty, k, rows.len(), group.len());
    let row_bytes = rows.len() / GROUP_ROWS;
    for (r, row) in rows.chunks_exact_mut(row_bytes).enumerate() {
        deinterleave_row(ty, k, group, r, row);
    }
}

/// Row `r` of a group.
///
/// # Panics
/// If `group` is not [`interleaved_bytes`] long or `row` no row of it.
pub fn deinterleave_row(ty: GgmlType, k: usize, group: &[u8], r: usize, row: &mut [u8]) {
    let form = checked(ty, k, GROUP_ROWS * row.len(), group.len());
    assert!(r < GROUP_ROWS, "row {r} of {GROUP_ROWS}");
    let mut rewritten = [0; MAX_BLOCK];
    let groups = group.chunks_exact(GROUP_ROWS * form.block_bytes);
    for (from, to) in groups.zip(row.chunks_exact_mut(ty.block_bytes())) {
        if let Some(rewrite) = form.rewrite {
            let rewritten = &mut rewritten[..form.block_bytes];
            deinterleave_block(form.fields, from, r, rewritten);
            (rewrite.back)(rewritten, to);
        } else {
            deinterleave_block(form.fields, from, r, to);
        }
    }
}

/// The block of row `r`.
fn deinterleave_block(fields: &[Field], mut from: &[u8], r: usize, to: &mut [u8]) {
    let mut at = 0;
    for field in fields {
        let (part, rest) = from.split_at(GROUP_ROWS * field.bytes);
        let to = &mut to[at..][..field.bytes];
        match field.unit {
            Unit::One => scatter::<1>(part, r, to, |unit| unit),
            Unit::Two => scatter::<2>(part, r, to, |unit| unit),
            Unit::Four => scatter::<4>(part, r, to, |unit| unit),
            Unit::Bits => scatter::<4>(part, r, to, transpose_back),
            Unit::Runs { bits } => scatter_runs(bits, part, r, to),
        }
        at += field.bytes;
        from = rest;
    }
}

/// How the type is interleaved.
fn checked(ty: GgmlType, k: usize, rows: usize, group: usize) -> Form {
    let (of_group, of_rows) = (
        interleaved_bytes(ty, k),
        GROUP_ROWS * ty.row_bytes(k).unwrap_or_default(),
    );
    assert!(
        rows == of_rows && group == of_group,
        "{ty}: {rows} bytes of rows and {group} of a group, not {of_rows} and {of_group}"
    );
    form(ty).unwrap_or_else(|| panic!("{ty} cannot be interleaved"))
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
    std::array::from_fn(|b| {
        // Every fourth bit, brought together.
        let bits = bits >> b & 0x1111_1111;
        let bits = (bits | bits >> 3) & 0x0303_0303;
        let bits = (bits | bits >> 6) & 0x000f_000f;
        (bits | bits >> 12) as u8
    })
}

/// The inverse of [`transpose_bits`].
fn transpose_back(bytes: [u8; 4]) -> [u8; 4] {
    let bits = u32::from_le_bytes(bytes);
    let moved = (0..32).map(|i| (bits >> (i % 4 * 8 + i / 4) & 1) << i);
    moved.sum::<u32>().to_le_bytes()
}
