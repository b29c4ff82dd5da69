//! Schedule in which [row groups](super::interleaved8) are multiplied, chosen for memory bandwidth.
//!
//! A core reads several sequential streams faster than a single one, so `G` groups are multiplied at a time.
//! If the rows are long enough, each stream is a contiguous range of groups; otherwise the streams are
//! adjacent groups:
//!
//! ```text
//! long (G = 2)                              short (G = 2)
//! groups   0  1  2 | 3  4  5                groups   0 1 | 2 3 | 4 5
//! step 0   *         *                      step 0   * *
//! step 1      *         *                   step 1         * *
//! step 2         *         *                step 2               * *
//!
//! for step in 0..n_groups / G:
//!     multiply groups  start(step) + s * stream_len  for s in 0..G
//! ```
//!
//! Prefetching follows the streams: at the end of its range, a stream skips the ranges of the other streams.

use super::int_products::{IntProduct, chunk};
use super::integers::I16Chunk;
use crate::layout::groups::{GROUP_ROWS, GroupScales, UnpackGroup, bytes_in_group};
use crate::layout::runs::{RUN, RUNS};
use crate::simd::IntSimd;

/// Minimum bytes per stream for contiguous ranges; shorter matrices alternate between adjacent groups.
const MIN_STREAM_BYTES: usize = 32 << 10;

/// The order in which row groups are multiplied, `G` at a time. Each stream reads
/// [`stream_len`](Schedule::stream_len) adjacent groups, then skips the groups of the other streams.
pub(super) struct Schedule<const G: usize> {
    n_groups: usize,
    /// Size of a row group in bytes.
    pub group_bytes: usize,
    /// Adjacent groups that a stream reads in sequence.
    pub stream_len: usize,
}

impl<const G: usize> Schedule<G> {
    /// Returns a schedule whose streams read `stream_len` adjacent groups each.
    pub fn new(p: &IntProduct, stream_len: usize) -> Schedule<G> {
        Schedule {
            n_groups: p.m / GROUP_ROWS,
            group_bytes: GROUP_ROWS * p.row_stride,
            stream_len,
        }
    }

    /// Returns a schedule with one contiguous range of groups per stream if the ranges have at least
    /// [`MIN_STREAM_BYTES`], otherwise with adjacent groups.
    pub fn streamed(p: &IntProduct) -> Schedule<G> {
        let part = (p.m / GROUP_ROWS).div_ceil(G);
        let is_long = part * GROUP_ROWS * p.row_stride >= MIN_STREAM_BYTES;
        Schedule::new(p, if is_long { part } else { 1 })
    }

    /// Number of steps, each of which multiplies `G` groups.
    pub fn len(&self) -> usize {
        self.n_groups.div_ceil(G)
    }

    /// Returns the groups of a step. A stream that has run out of groups repeats the last one.
    #[inline(always)]
    pub fn groups(&self, step: usize) -> Groups<G> {
        let (before, at) = (step / self.stream_len * self.stream_len, step % self.stream_len);
        let mut numbers = [0; G];
        for (g, number) in numbers.iter_mut().enumerate() {
            *number = (G * before + g * self.stream_len + at).min(self.n_groups - 1);
        }
        Groups {
            numbers,
            bytes: self.group_bytes,
            remaining: (self.stream_len - at) * self.group_bytes,
            skip: (G - 1) * self.stream_len * self.group_bytes,
        }
    }
}

/// Row groups that are multiplied in the same step.
#[derive(Clone, Copy)]
pub(super) struct Groups<const G: usize> {
    numbers: [usize; G],
    /// Size of each row group in bytes.
    bytes: usize,
    /// Bytes from the current group to the end of the stream's range.
    remaining: usize,
    /// Bytes of the other streams' ranges to skip at the end of a range.
    skip: usize,
}

impl<const G: usize> Groups<G> {
    /// Returns the first row of each group.
    #[inline(always)]
    pub fn rows(&self) -> [usize; G] {
        let mut rows = self.numbers;
        for row in &mut rows {
            *row *= GROUP_ROWS;
        }
        rows
    }

    /// Returns the chunk at element `c` of these groups and of the columns.
    ///
    /// # Safety
    /// `p` satisfies the invariants of [`IntProduct`], and `c < p.k`.
    #[inline(always)]
    pub unsafe fn part<V: IntSimd, D: UnpackGroup<V>>(
        &self,
        p: &IntProduct,
        c: usize,
        scales: *const GroupScales,
    ) -> GroupChunk<G> {
        GroupChunk {
            scales,
            // SAFETY: the caller upholds the contract of `part_at`.
            ..unsafe { self.part_at(p, c, bytes_in_group::<D>(c)) }
        }
    }

    /// Returns the chunk at element `c`, `offset` bytes after the start of each group, without scales.
    ///
    /// # Safety
    /// `p` satisfies the invariants of [`IntProduct`], and `c < p.k`.
    #[inline(always)]
    pub unsafe fn part_at(&self, p: &IntProduct, c: usize, offset: usize) -> GroupChunk<G> {
        let mut w = [p.w; G];
        for g in 0..G {
            w[g] = w[g].wrapping_add(self.numbers[g] * self.bytes + offset);
        }
        GroupChunk {
            w,
            remaining: self.remaining - offset,
            skip: self.skip,
            runs: RUNS.min((p.k - c) / RUN),
            scales: std::ptr::null(),
            // SAFETY: `c < p.k`, so each row of activations has a chunk there (function contract).
            x: unsafe { chunk(p.x, c) },
            x_stride: p.x_stride,
        }
    }
}

/// A chunk of `G` row groups and of several columns.
#[derive(Clone, Copy)]
pub(super) struct GroupChunk<const G: usize> {
    pub w: [*const u8; G],
    /// Bytes from this chunk to the end of the stream's range.
    pub remaining: usize,
    /// Bytes of the other streams' ranges to skip at the end of a range.
    pub skip: usize,
    /// Runs in this chunk; fewer than [`RUNS`] at the end of a row.
    pub runs: usize,
    /// Scales of each group, or null.
    pub scales: *const GroupScales,
    /// Pointer to the activation chunk of the first column.
    x: *const I16Chunk,
    /// Distance between activation columns in bytes.
    pub x_stride: usize,
}

impl<const G: usize> GroupChunk<G> {
    /// Returns the chunk of column `j`.
    #[inline(always)]
    pub fn column(&self, j: usize) -> *const I16Chunk {
        self.x.wrapping_byte_add(j * self.x_stride)
    }
}
