//! Row groups: 8 interleaved rows, stored so that kernels need no shuffles.
//!
//! [`interleaved`](crate::interleaved) has a picture of the layout and the functions that convert rows. This
//! module has the description of a type's layout ([`Interleaved`]) and the loads from a group, with one row
//! per 32-bit lane ([`UnpackGroup`]).

use super::block::Block;
use super::runs::{HALVES, RUN, Unpack};
use crate::simd::{IntSimd, Simd};

/// Number of rows per row group.
pub const GROUP_ROWS: usize = 8;

/// Number of rows per register.
pub(crate) const LANES: usize = GROUP_ROWS;

/// A part of a block and the unit in which it is interleaved.
pub(crate) struct Field {
    /// Size of the part in a block.
    pub bytes: usize,
    pub unit: Unit,
}

/// The unit of a row's bytes that stays contiguous.
#[derive(Clone, Copy)]
pub(crate) enum Unit {
    /// Unit of one byte, for small scales.
    One,
    /// Unit of two bytes, for f16 scales.
    Two,
    /// Four bytes, which hold the bits of four or more weights.
    Four,
    /// Four bytes with one bit for each of 32 weights, transposed: bit `4 j + b` becomes bit `j` of byte `b`.
    /// Each byte then holds bits of the same weights as a byte of the other fields.
    Bits,
    /// Four bytes, after the bits of each run are brought together. Each byte of a 32-byte piece holds bits
    /// of several runs: part `r` of byte `4 bits s + b` becomes part `s` of byte `4 bits r + b`. Every run
    /// then has its own bytes, laid out like a block with a single run.
    Runs {
        /// Number of bits per weight: 4, 2, or 1.
        bits: usize,
    },
}

/// Describes a field of `bytes` bytes.
pub(crate) const fn field(bytes: usize, unit: Unit) -> Field {
    Field { bytes, unit }
}

/// A block type whose rows can be interleaved.
pub(crate) trait Interleaved: Block {
    /// Fields of the block in order, covering all of it. If [`REWRITE`](Self::REWRITE) is set, they describe
    /// the rewritten block.
    const FIELDS: &'static [Field];

    /// Conversion applied to each block before interleaving.
    const REWRITE: Option<Rewrite> = None;

    /// Bytes of a block per row in a group.
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

/// Returns the size of `n` weights of each row of a group. `n` is a whole number of blocks.
#[inline(always)]
pub(crate) const fn bytes_in_group<B: Interleaved>(n: usize) -> usize {
    GROUP_ROWS * (n / B::TYPE.block_size() * B::BLOCK_BYTES)
}

/// Maximum bytes of a block per row in a group.
pub(crate) const MAX_BLOCK: usize = 256;

/// A lossless conversion of blocks for interleaving. Converting back yields the bytes that the type's encoder
/// writes for the same weights.
#[derive(Clone, Copy)]
pub(crate) struct Rewrite {
    /// Converts a block of a file to its form in a group.
    pub to_group: fn(&[u8], &mut [u8]),
    /// Converts a block of a group to its form in a file.
    pub to_file: fn(&[u8], &mut [u8]),
}

/// Scales and minimums of a chunk of a row group, with one lane per row. The first index is the half run if
/// the type is [`BY_16`](Unpack::BY_16), otherwise the run.
#[repr(C, align(64))]
pub(crate) struct GroupScales {
    pub scales: [[f32; LANES]; HALVES],
    /// Unset for types whose only minimum is the one implied by [`ZERO`](Unpack::ZERO).
    pub mins: [[f32; LANES]; HALVES],
}

impl GroupScales {
    /// Stores scale `i`.
    ///
    /// # Safety
    /// The CPU supports `V`, `to` is valid for writes, and `i < HALVES`.
    #[inline(always)]
    pub(crate) unsafe fn set<V: Simd>(to: *mut GroupScales, i: usize, scale: V) {
        // SAFETY: `scales[i]` has exactly 8 floats, and `to` is valid for writes (function contract).
        unsafe { scale.store((&raw mut (*to).scales[i]).cast()) }
    }

    /// Stores minimum `i`.
    ///
    /// # Safety
    /// The CPU supports `V`, `to` is valid for writes, and `i < HALVES`.
    #[inline(always)]
    pub(crate) unsafe fn set_min<V: Simd>(to: *mut GroupScales, i: usize, min: V) {
        // SAFETY: `mins[i]` has exactly 8 floats, and `to` is valid for writes (function contract).
        unsafe { min.store((&raw mut (*to).mins[i]).cast()) }
    }

    /// Loads scale `i`.
    ///
    /// # Safety
    /// The CPU supports `V`, and scale `i` was stored by [`set`](GroupScales::set).
    #[inline(always)]
    pub(crate) unsafe fn scale<V: Simd>(from: *const GroupScales, i: usize) -> V {
        // SAFETY: `scales[i]` is initialized (function contract) and has exactly 8 floats.
        unsafe { V::load((&raw const (*from).scales[i]).cast()) }
    }

    /// Loads minimum `i`.
    ///
    /// # Safety
    /// The CPU supports `V`, and minimum `i` was stored by [`set_min`](GroupScales::set_min).
    #[inline(always)]
    pub(crate) unsafe fn min<V: Simd>(from: *const GroupScales, i: usize) -> V {
        // SAFETY: `mins[i]` is initialized (function contract) and has exactly 8 floats.
        unsafe { V::load((&raw const (*from).mins[i]).cast()) }
    }
}

/// A block type whose row groups can be unpacked to integers.
///
/// # Safety
/// Callers of the unsafe functions guarantee:
/// - The CPU supports `V`.
/// - `p` points to the start of a chunk of a row group and is valid for reads of all blocks that hold the
///   requested runs.
pub(crate) trait UnpackGroup<V: IntSimd>: Unpack<V> + Interleaved {
    /// Stores the scales of the first `runs` runs of a chunk, and the minimums unless [`ZERO`](Unpack::ZERO)
    /// implies them. The default is for blocks that start with their only scale, an f16.
    #[inline(always)]
    unsafe fn group_scales(p: *const u8, runs: usize, to: *mut GroupScales) {
        // SAFETY: `p` is valid for the chunk's blocks of a row group (trait contract), and blocks start with
        // an f16 of each row.
        unsafe { set_group_scales::<V::Float, Self>(p, 0, runs, to) }
    }

    /// Returns weights `4 j..4 j + 4` of run `i` for each row. `j` is usually a constant after inlining. `i` is not:
    /// measurements show that shared code for all runs of a chunk is faster.
    unsafe fn group_values(p: *const u8, i: usize, j: usize) -> V;
}

/// Loads bytes `at..at + 4` of the block of each row.
///
/// # Safety
/// The CPU supports `V`, and `p` points to a block of a row group that has at least `at + 4` bytes per row.
#[inline(always)]
pub(crate) unsafe fn group_word<V: IntSimd>(p: *const u8, at: usize) -> V {
    // SAFETY: 8 rows of 4 bytes are within the group's block (function contract).
    unsafe { V::load(p.add(GROUP_ROWS * at)) }
}

/// Returns word `j` of a 32-weight run stored as 16 bytes per row: weights 0..16 are the low nibbles, 16..32
/// the high ones. `at` is the offset of the bytes in the block.
///
/// # Safety
/// The CPU supports `V`, and `p` points to a block of a row group that has at least `at + 16` bytes per row.
#[inline(always)]
pub(crate) unsafe fn group_nibbles<V: IntSimd>(p: *const u8, at: usize, j: usize) -> V {
    // SAFETY: the offset is at most `at + 12`, so the 4 bytes are within the 16 (function contract).
    unsafe {
        let both: V = group_word(p, at + j % 4 * 4);
        let nibbles = if j < 4 { both } else { both.shr(4) };
        nibbles.and(V::splat(15))
    }
}

/// Returns word `j` of a 32-weight run stored as 8 bytes per row, 2 bits per weight: weights 0..8 are the
/// lowest pairs of bits. `at` is the offset of the bytes in the block.
///
/// # Safety
/// The CPU supports `V`, and `p` points to a block of a row group that has at least `at + 8` bytes per row.
#[inline(always)]
pub(crate) unsafe fn group_bit_pairs<V: IntSimd>(p: *const u8, at: usize, j: usize) -> V {
    // SAFETY: the offset is at most `at + 4`, so the 4 bytes are within the 8 (function contract).
    unsafe {
        let pairs: V = group_word(p, at + j % 2 * 4);
        pairs.shr(j as u32 / 2 * 2).and(V::splat(3))
    }
}

/// Loads byte `at` of the block of each row.
///
/// # Safety
/// The CPU supports `V`, and `p` points to a block of a row group that has more than `at` bytes per row.
#[inline(always)]
pub(crate) unsafe fn load_group_bytes<V: Simd>(p: *const u8, at: usize) -> V::Int {
    // SAFETY: byte `at` of 8 rows is within the group's block (function contract).
    unsafe { V::load_u8(p.add(GROUP_ROWS * at)) }
}

/// Loads the f16 at byte `at` of the block of each row.
///
/// # Safety
/// The CPU supports `V`, and `p` points to a block of a row group that has at least `at + 2` bytes per row.
#[inline(always)]
pub(crate) unsafe fn load_group_f16<V: Simd>(p: *const u8, at: usize) -> V {
    // SAFETY: two bytes of 8 rows are within the group's block (function contract).
    unsafe { V::load_f16(p.add(GROUP_ROWS * at)) }
}

/// Returns the address of the group's block that contains run `i` of a chunk.
///
/// # Safety
/// `p` points to the start of a chunk of a row group that has more than `i` runs.
#[inline(always)]
pub(crate) unsafe fn block_at_run<B: Interleaved>(p: *const u8, i: usize) -> *const u8 {
    let block_size = B::TYPE.block_size();
    // SAFETY: the block of run `i` is part of the chunk (function contract).
    unsafe { p.add(bytes_in_group::<B>(i * RUN / block_size * block_size)) }
}

/// Stores the f16 at byte `at` of each block as the scale of the block's runs.
///
/// # Safety
/// - The CPU supports `V`.
/// - `p` points to a chunk with at least `runs` runs, and `to` is valid for writes.
/// - `runs` is a whole number of blocks, and a block has at least `at + 2` bytes per row.
#[inline(always)]
pub(crate) unsafe fn set_group_scales<V: Simd, B: Interleaved>(
    p: *const u8,
    at: usize,
    runs: usize,
    to: *mut GroupScales,
) {
    let runs_of_block = B::TYPE.block_size() / RUN;
    for first in (0..runs).step_by(runs_of_block) {
        // SAFETY: `runs` covers whole blocks, so every block of the loop is part of the chunk.
        unsafe {
            let scale: V = load_group_f16(block_at_run::<B>(p, first), at);
            for i in first..first + runs_of_block {
                GroupScales::set(to, i, scale);
            }
        }
    }
}
