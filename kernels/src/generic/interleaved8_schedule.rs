//! The order in which [groups](super::interleaved8) of interleaved rows are multiplied: as streams that memory gives faster than one.

use super::interleaved8::{GroupScales, UnpackGroup};
use super::int_products::{IntProduct, chunk};
use super::integers::{I16Chunk, RUN, RUNS};
use crate::interleaved::{GROUP_ROWS, bytes_in_group};
use crate::simd::IntSimd;

/// Bytes from which half of the rows is a stream of its own. Of fewer rows neighbouring groups are read in turn.
const LONG: usize = 32 << 10;

/// The order in which groups are multiplied, `G` at a time: each stream reads so many neighbours among the groups, then goes on behind those of the others.
pub(super) struct Order<const G: usize> {
    n_groups: usize,
    /// Bytes of a group.
    pub group_bytes: usize,
    /// Groups that a stream reads one after the other.
    pub neighbours: usize,
}

impl<const G: usize> Order<G> {
    /// Streams that read so many neighbours each.
    pub fn new(p: &IntProduct, neighbours: usize) -> Order<G> {
        Order {
            n_groups: p.m / GROUP_ROWS,
            group_bytes: GROUP_ROWS * p.row_stride,
            neighbours,
        }
    }

    /// Streams that each read a part of the rows in one go if those are [`LONG`], else neighbouring groups.
    pub fn of_streams(p: &IntProduct) -> Order<G> {
        let part = (p.m / GROUP_ROWS).div_ceil(G);
        let is_long = part * GROUP_ROWS * p.row_stride >= LONG;
        Order::new(p, if is_long { part } else { 1 })
    }

    /// Times that `G` groups are multiplied.
    pub fn len(&self) -> usize {
        self.n_groups.div_ceil(G)
    }

    /// The groups that are multiplied at some step. Where a stream has no group left, the last one is multiplied once more.
    #[inline(always)]
    pub fn groups(&self, step: usize) -> Groups<G> {
        let (before, at) = (step / self.neighbours * self.neighbours, step % self.neighbours);
        let mut numbers = [0; G];
        for (g, number) in numbers.iter_mut().enumerate() {
            *number = (G * before + g * self.neighbours + at).min(self.n_groups - 1);
        }
        Groups {
            numbers,
            bytes: self.group_bytes,
            left: (self.neighbours - at) * self.group_bytes,
            others: (G - 1) * self.neighbours * self.group_bytes,
        }
    }
}

/// Groups that are multiplied together.
#[derive(Clone, Copy)]
pub(super) struct Groups<const G: usize> {
    numbers: [usize; G],
    /// Bytes of each.
    bytes: usize,
    /// Bytes of a stream from its group on, until it goes on behind the others.
    left: usize,
    /// Bytes of the others in between.
    others: usize,
}

impl<const G: usize> Groups<G> {
    /// The first row of each.
    #[inline(always)]
    pub fn rows(&self) -> [usize; G] {
        let mut rows = self.numbers;
        for row in &mut rows {
            *row *= GROUP_ROWS;
        }
        rows
    }

    /// The chunk that starts at element `c`, and that of the columns.
    ///
    /// # Safety
    /// As for [`multiply`].
    #[inline(always)]
    pub unsafe fn part<V: IntSimd, D: UnpackGroup<V>>(
        &self,
        p: &IntProduct,
        c: usize,
        scales: *const GroupScales,
    ) -> Part<G> {
        let mut w = [p.w; G];
        for g in 0..G {
            w[g] = w[g].wrapping_add(self.numbers[g] * self.bytes + bytes_in_group::<D>(c));
        }
        Part {
            w,
            left: self.left - bytes_in_group::<D>(c),
            others: self.others,
            runs: RUNS.min((p.k - c) / RUN),
            scales,
            // SAFETY: the caller's promise.
            x: unsafe { chunk(p.x, c) },
            x_stride: p.x_stride,
        }
    }
}

/// A chunk of each of some groups and of several columns.
#[derive(Clone, Copy)]
pub(super) struct Part<const G: usize> {
    pub w: [*const u8; G],
    /// Bytes of a stream from the chunk on, until it goes on behind the others.
    pub left: usize,
    /// Bytes of the others in between.
    pub others: usize,
    /// Runs that there are.
    pub runs: usize,
    /// Of each group.
    pub scales: *const GroupScales,
    /// The first column.
    x: *const I16Chunk,
    /// Bytes from one column to the next.
    x_stride: usize,
}

impl<const G: usize> Part<G> {
    /// Column `j`.
    #[inline(always)]
    pub fn column(&self, j: usize) -> *const I16Chunk {
        self.x.wrapping_byte_add(j * self.x_stride)
    }
}
