//! Order in which rows of weights are read from memory.
//!
//! A core reads several sequential streams faster than a single one. The rows of a matmul are divided into
//! `N` contiguous ranges, and each step multiplies the next row of every range:
//!
//! ```text
//! m = 10, N = 4         step 0    step 1    step 2
//! stream 0              row 0     row 1     row 2
//! stream 1              row 3     row 4     row 5
//! stream 2              row 6     row 7     row 8
//! stream 3              row 9     -         -
//! ```

/// The rows of a matmul, divided into `N` contiguous streams.
pub(super) struct Streams<const N: usize> {
    m: usize,
    n_steps: usize,
}

impl<const N: usize> Streams<N> {
    pub(super) fn new(m: usize) -> Streams<N> {
        Streams {
            m,
            n_steps: m.div_ceil(N),
        }
    }

    /// Returns the number of steps that cover all rows.
    pub(super) fn n_steps(&self) -> usize {
        self.n_steps
    }

    /// Returns the row of stream `s` in step `i`.
    #[inline(always)]
    pub(super) fn row(&self, s: usize, i: usize) -> usize {
        s * self.n_steps + i
    }

    /// Returns the number of streams that have a row in step `i`.
    #[inline(always)]
    pub(super) fn len(&self, i: usize) -> usize {
        (0..N).filter(|&s| self.row(s, i) < self.m).count()
    }

    /// Returns the addresses of the rows of step `i`. Streams without a row repeat the first one.
    #[inline(always)]
    pub(super) fn rows(&self, w: *const u8, row_stride: usize, i: usize) -> [*const u8; N] {
        let n = self.len(i);
        std::array::from_fn(|s| w.wrapping_add(self.row(if s < n { s } else { 0 }, i) * row_stride))
    }
}
