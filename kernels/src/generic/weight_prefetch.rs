//! Prefetching the weights that are multiplied next while others are multiplied: with a few dozen columns a product waits for memory else, a third of the time.

use std::ops::Range;

use super::pack::{LANES, RowLayout, WeightRows};
use crate::prefetch::{CACHE_LINE, CacheLevel, prefetch};

/// Some chunks of some rows. Of one piece after the other, which are rows or groups of them, each cache line is asked for once.
pub(crate) struct NextWeights {
    piece: *const u8,
    stride: usize,
    /// Pieces that are left, this one included.
    pieces: usize,
    lines: usize,
    /// The line of this piece that is next.
    line: usize,
    /// Lines that are asked for at a time.
    at_once: usize,
}

impl NextWeights {
    /// These chunks of `rows` rows from row `i` on, to be asked for in `times` times. Addresses beyond the last row or element do no harm.
    #[inline(always)]
    pub(crate) fn new(w: &WeightRows, i: usize, chunks: Range<usize>, rows: usize, times: usize) -> Self {
        let (c, bytes) = (chunks.start, chunks.len() * w.chunk_bytes);
        let (at, bytes, stride, pieces) = match w.layout {
            RowLayout::Rows(_) => (i * w.row_stride + c * w.chunk_bytes, bytes, w.row_stride, rows),
            RowLayout::Groups(_) => {
                let stride = LANES * w.row_stride;
                (w.place_in_groups(i, c), LANES * bytes, stride, rows / LANES)
            }
        };
        // One more, as pieces begin anywhere in a line.
        let lines = bytes.div_ceil(CACHE_LINE) + 1;
        NextWeights {
            piece: w.w.wrapping_add(at),
            stride,
            pieces,
            lines,
            line: 0,
            at_once: (lines * pieces).div_ceil(times.max(1)),
        }
    }

    /// Asks for some lines.
    #[inline(always)]
    pub(crate) fn fetch(&mut self) {
        self.for_each_next(|line| prefetch(line, CacheLevel::Second));
    }

    /// Calls `f` with the lines that are asked for at a time.
    #[inline(always)]
    pub(crate) fn for_each_next(&mut self, mut f: impl FnMut(*const u8)) {
        let mut left = self.at_once;
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
