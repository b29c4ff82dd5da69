//! The order in which rows of weights are read from memory.

/// The rows of a product as `N` streams, each of which goes through neighbouring rows. Streams take turns: memory gives several of them faster than one.
pub(super) struct Streams<const N: usize> {
    m: usize,
    turns: usize,
}

impl<const N: usize> Streams<N> {
    pub(super) fn new(m: usize) -> Streams<N> {
        Streams {
            m,
            turns: m.div_ceil(N),
        }
    }

    /// Turns until all rows are done.
    pub(super) fn turns(&self) -> usize {
        self.turns
    }

    /// The row that stream `s` is at in turn `i`.
    #[inline(always)]
    pub(super) fn row(&self, s: usize, i: usize) -> usize {
        s * self.turns + i
    }

    /// The number of streams that have a row in turn `i`.
    #[inline(always)]
    pub(super) fn len(&self, i: usize) -> usize {
        (0..N).filter(|&s| self.row(s, i) < self.m).count()
    }

    /// The rows in turn `i` of weights from `w` on; for streams that have none the first.
    #[inline(always)]
    pub(super) fn rows(&self, w: *const u8, row_stride: usize, i: usize) -> [*const u8; N] {
        let n = self.len(i);
        std::array::from_fn(|s| w.wrapping_add(self.row(if s < n { s } else { 0 }, i) * row_stride))
    }
}
