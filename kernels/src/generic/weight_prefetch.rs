//! Software prefetch of the weights that are multiplied next.
//!
//! With a few dozen columns, a matmul without it would wait for memory a third of the time. The prefetcher
//! divides the cache lines of the next rows evenly among the column tiles of the current ones:
//!
//! ```text
//! next = WeightPrefetcher(next rows, next chunks, times = number of column tiles)
//! for tile in columns:
//!     next.fetch()                 # requests lines_per_call cache lines into L2
//!     multiply the current weights by tile
//! ```

use std::ops::Range;

use super::pack::{RowLayout, WeightRows};
use crate::layout::groups::LANES;
use crate::prefetch::{CACHE_LINE, CacheLevel, prefetch};

/// Iterates over the cache lines of some chunks of some rows, requesting each line once. A piece is one row
/// or one row group.
pub(crate) struct WeightPrefetcher {
    piece: *const u8,
    stride: usize,
    /// Number of remaining pieces, including the current piece.
    pieces: usize,
    lines: usize,
    /// Next cache line of the current piece.
    line: usize,
    /// Number of cache lines requested per call.
    lines_per_call: usize,
}

impl WeightPrefetcher {
    /// Creates a prefetcher for `chunks` of `rows` rows starting at row `i`, which requests all lines in `times` calls.
    /// Addresses beyond the last row or element are harmless.
    #[inline(always)]
    pub(crate) fn new(w: &WeightRows, i: usize, chunks: Range<usize>, rows: usize, times: usize) -> Self {
        let (c, bytes) = (chunks.start, chunks.len() * w.chunk_bytes);
        let (at, bytes, stride, pieces) = match w.layout {
            RowLayout::Rows(_) => (i * w.row_stride + c * w.chunk_bytes, bytes, w.row_stride, rows),
            RowLayout::Groups(_) => {
                let stride = LANES * w.row_stride;
                (w.group_offset(i, c), LANES * bytes, stride, rows / LANES)
            }
        };
        // Prefetch one more line, because pieces are not aligned to cache lines.
        let lines = bytes.div_ceil(CACHE_LINE) + 1;
        WeightPrefetcher {
            piece: w.w.wrapping_add(at),
            stride,
            pieces,
            lines,
            line: 0,
            lines_per_call: (lines * pieces).div_ceil(times.max(1)),
        }
    }

    /// Prefetches the next lines into the L2 cache.
    #[inline(always)]
    pub(crate) fn fetch(&mut self) {
        self.next_lines(|line| prefetch(line, CacheLevel::Second));
    }

    /// Calls `f` with the address of each line of the next batch.
    #[inline(always)]
    pub(crate) fn next_lines(&mut self, mut f: impl FnMut(*const u8)) {
        let mut left = self.lines_per_call;
        while left > 0 && self.pieces > 0 {
            let n = left.min(self.lines - self.line);
            for line in self.line..self.line + n {
                f(self.piece.wrapping_add(line * CACHE_LINE));
            }
            left -= n;
            self.line += n;
            if self.line == self.lines {
                self.line = 0;
                self.pieces -= 1;
                self.piece = self.piece.wrapping_add(self.stride);
            }
        }
    }
}
