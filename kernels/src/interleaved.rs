//! Interleaved layout of weights: groups of [`GROUP_ROWS`] rows, stored so that kernels need no shuffles.
//!
//! A group is a sequence of blocks, each of which combines the blocks at the same position of its 8 rows.
//! Every field of a block is split into units of 1, 2, or 4 bytes. Unit `u` of rows 0 to 7 is stored
//! contiguously:
//!
//! ```text
//! rows in a file                                one block of the group
//! row 0 | d0 | a0 a1 a2 a3 | a4 a5 a6 a7 | ..   | d0 d1 .. d7 |       2-byte units: f16 scales
//! row 1 | d1 | b0 b1 b2 b3 | b4 b5 b6 b7 | ..   | a0 a1 a2 a3 | b0 b1 b2 b3 | .. | h0 h1 h2 h3 |   4-byte units
//!   ..                                          | a4 a5 a6 a7 | b4 b5 b6 b7 | .. | h4 h5 h6 h7 |
//! row 7 | d7 | h0 h1 h2 h3 | h4 h5 h6 h7 | ..     ..
//! ```
//!
//! A 32-byte load then yields 4 adjacent bytes of each row, one row per 32-bit lane, and the scales of 8 rows
//! fill one register.
//!
//! Two kinds of types change more than the order of bytes:
//! - If a byte of the file holds bits of several runs of 32 weights, the bits are regrouped by run (`Unit::Runs`). The
//!   same few instructions then unpack any run.
//! - Blocks that hold grid indices (IQ1, IQ2, IQ3) or base-3 digits (TQ1_0) are rewritten to the values they
//!   encode (`Rewrite`). Only these groups are larger than the rows in the file.

use crate::GgmlType;
use crate::layout::block::Block;
pub use crate::layout::groups::GROUP_ROWS;
use crate::layout::groups::{Field, Interleaved, MAX_BLOCK, Rewrite, Unit};
use crate::quants::{self, for_each_block};

/// The interleaved layout of a type.
#[derive(Clone, Copy)]
struct Form {
    fields: &'static [Field],
    rewrite: Option<Rewrite>,
    /// Bytes of a block per row in a group.
    block_bytes: usize,
}

/// Returns the interleaved layout of `ty`, or `None` if the type has none.
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

/// Returns true if rows of `k` weights of type `ty` can be interleaved.
pub fn can_interleave(ty: GgmlType, k: usize) -> bool {
    k > 0 && ty.row_bytes(k).is_some() && form(ty).is_some()
}

/// Returns the size in bytes of a group of [`GROUP_ROWS`] rows of `k` weights. This equals the size of the
/// rows in a file, except for TQ1_0 and the grid types.
///
/// # Panics
/// Panics if rows of `k` weights of this type [cannot be interleaved](can_interleave).
pub fn interleaved_bytes(ty: GgmlType, k: usize) -> usize {
    assert!(can_interleave(ty, k), "cannot interleave rows of {k} {ty} weights");
    let block_bytes = form(ty).map_or(0, |form| form.block_bytes);
    GROUP_ROWS * (k / ty.block_size() * block_bytes)
}

/// Interleaves [`GROUP_ROWS`] rows of `k` weights into a group.
///
/// # Panics
/// Panics if `rows` does not have the size of 8 rows in a file, or `group` is not [`interleaved_bytes`] long.
pub fn interleave(ty: GgmlType, k: usize, rows: &[u8], group: &mut [u8]) {
    let form = checked_form(ty, k, rows.len(), group.len());
    let (row, block) = (rows.len() / GROUP_ROWS, ty.block_bytes());
    let mut rewritten = [[0; MAX_BLOCK]; GROUP_ROWS];
    for (b, to) in group.chunks_exact_mut(GROUP_ROWS * form.block_bytes).enumerate() {
        let row_block = |r: usize| &rows[r * row + b * block..][..block];
        if let Some(rewrite) = form.rewrite {
            for (r, to) in rewritten.iter_mut().enumerate() {
                (rewrite.to_group)(row_block(r), &mut to[..form.block_bytes]);
            }
            interleave_blocks(form.fields, |r| &rewritten[r], to);
        } else {
            interleave_blocks(form.fields, row_block, to);
        }
    }
}

/// Interleaves the blocks at one position of all rows.
#[inline(always)]
fn interleave_blocks<'a>(fields: &[Field], row_block: impl Fn(usize) -> &'a [u8], mut to: &mut [u8]) {
    let mut at = 0;
    for field in fields {
        let (part, rest) = to.split_at_mut(GROUP_ROWS * field.bytes);
        let from = |r: usize| &row_block(r)[at..][..field.bytes];
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

/// Restores the rows of a group; the inverse of [`interleave`].
///
/// # Panics
/// Panics if `rows` does not have the size of 8 rows in a file, or `group` is not [`interleaved_bytes`] long.
pub fn deinterleave(ty: GgmlType, k: usize, group: &[u8], rows: &mut [u8]) {
    checked_form(ty, k, rows.len(), group.len());
    let row_bytes = rows.len() / GROUP_ROWS;
    for (r, row) in rows.chunks_exact_mut(row_bytes).enumerate() {
        deinterleave_row(ty, k, group, r, row);
    }
}

/// Restores row `r` of a group.
///
/// # Panics
/// Panics if `group` is not [`interleaved_bytes`] long, `row` does not have the size of a row in a file, or `r` is at
/// least [`GROUP_ROWS`].
pub fn deinterleave_row(ty: GgmlType, k: usize, group: &[u8], r: usize, row: &mut [u8]) {
    let form = checked_form(ty, k, GROUP_ROWS * row.len(), group.len());
    assert!(
        r < GROUP_ROWS,
        "row {r} is out of range for a group of {GROUP_ROWS} rows"
    );
    let mut rewritten = [0; MAX_BLOCK];
    let groups = group.chunks_exact(GROUP_ROWS * form.block_bytes);
    for (from, to) in groups.zip(row.chunks_exact_mut(ty.block_bytes())) {
        if let Some(rewrite) = form.rewrite {
            let rewritten = &mut rewritten[..form.block_bytes];
            deinterleave_block(form.fields, from, r, rewritten);
            (rewrite.to_file)(rewritten, to);
        } else {
            deinterleave_block(form.fields, from, r, to);
        }
    }
}

/// Restores the block of row `r` from a block of the group.
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

/// Returns the layout of `ty` after checking the sizes of the rows and the group in bytes.
fn checked_form(ty: GgmlType, k: usize, rows: usize, group: usize) -> Form {
    let (of_group, of_rows) = (
        interleaved_bytes(ty, k),
        GROUP_ROWS * ty.row_bytes(k).unwrap_or_default(),
    );
    assert!(
        rows == of_rows && group == of_group,
        "cannot interleave {ty}: expected {of_rows} bytes of rows and {of_group} of a group, found {rows} and {group}"
    );
    form(ty).unwrap_or_else(|| panic!("{ty} has no interleaved layout"))
}

/// Copies a field of all rows to the group in units of `N` bytes, applying `f` to each unit.
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

/// Copies a field of row `r` from the group in units of `N` bytes, applying `f` to each unit.
#[inline(always)]
fn scatter<const N: usize>(from: &[u8], r: usize, to: &mut [u8], f: impl Fn([u8; N]) -> [u8; N]) {
    let (units, _) = from.as_chunks::<N>();
    for (to, units) in to.as_chunks_mut::<N>().0.iter_mut().zip(units.chunks_exact(GROUP_ROWS)) {
        *to = f(units[r]);
    }
}

/// Restores a [`Unit::Runs`] field of row `r`.
fn scatter_runs(bits: usize, from: &[u8], r: usize, to: &mut [u8]) {
    scatter::<4>(from, r, to, |unit| unit);
    for piece in to.as_chunks_mut::<PIECE>().0 {
        let mut words: [[u32; 1]; PIECE_WORDS] = bytemuck::cast(*piece);
        sort_by_runs(bits, &mut words);
        *piece = bytemuck::cast(words);
    }
}

/// Interleaves a [`Unit::Runs`] field of all rows.
fn gather_runs<'a>(bits: usize, from: impl Fn(usize) -> &'a [u8], to: &mut [u8]) {
    gather::<4>(from, to, |unit| unit);
    for pieces in to.as_chunks_mut::<{ GROUP_ROWS * PIECE }>().0 {
        let mut words: [[u32; GROUP_ROWS]; PIECE_WORDS] = bytemuck::cast(*pieces);
        sort_by_runs(bits, &mut words);
        *pieces = bytemuck::cast(words);
    }
}

/// Bytes of a row that are regrouped together for [`Unit::Runs`].
const PIECE: usize = 32;
const PIECE_WORDS: usize = PIECE / 4;

/// Regroups the bits of one piece of each row by run (see [`Unit::Runs`]). This transposes a square of bit
/// fields, so it is its own inverse.
#[inline(always)]
fn sort_by_runs<const ROWS: usize>(bits: usize, words: &mut [[u32; ROWS]; PIECE_WORDS]) {
    // Swap nibbles of bytes half a piece apart, then pairs of bits, then single bits.
    exchange::<4, ROWS>(words);
    if bits <= 2 {
        exchange::<2, ROWS>(words);
    }
    if bits == 1 {
        exchange::<1, ROWS>(words);
    }
}

/// Swaps bits that are `SHIFT` apart within their byte between words that are `SHIFT` apart.
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

/// Moves bit `4 j + b` to bit `8 b + j`.
fn transpose_bits(bytes: [u8; 4]) -> [u8; 4] {
    let bits = u32::from_le_bytes(bytes);
    std::array::from_fn(|b| {
        // Gathers every fourth bit.
        let bits = bits >> b & 0x1111_1111;
        let bits = (bits | bits >> 3) & 0x0303_0303;
        let bits = (bits | bits >> 6) & 0x000f_000f;
        (bits | bits >> 12) as u8
    })
}

/// Moves bit `8 b + j` to bit `4 j + b`; the inverse of [`transpose_bits`].
fn transpose_back(bytes: [u8; 4]) -> [u8; 4] {
    let bits = u32::from_le_bytes(bytes);
    let moved = (0..32).map(|i| (bits >> (i % 4 * 8 + i / 4) & 1) << i);
    moved.sum::<u32>().to_le_bytes()
}
