//! Scratch memory of attention.

use kernels::attention::tiles::{self, TILE_QUERIES};

use super::sizes::{Sizes, pages_together};
use crate::backend::cpu::scratch::take;
use crate::graph::PAGE;

/// Scratch memory of a thread.
pub(super) struct AttentionScratch<'a> {
    /// Scaled queries, contiguous.
    pub(super) queries: &'a mut [f32],
    /// Scores of a block of queries with one page, [`PAGE`] per query.
    pub(super) scores: &'a mut [f32],
    /// Factor per query of a block for the sums of earlier pages.
    pub(super) factors: &'a mut [f32],
    /// Scratch buffer of the attention kernel.
    pub(super) kernel: &'a mut [f32],
    pub(super) tiles: TileScratch<'a>,
}

impl<'a> AttentionScratch<'a> {
    pub(super) fn new(scratch: &mut &'a mut [f32], s: &Sizes) -> AttentionScratch<'a> {
        let [queries, scores, factors, kernel] = Self::sizes(s).map(|floats| take(scratch, floats));
        AttentionScratch {
            queries,
            scores,
            factors,
            kernel,
            tiles: TileScratch::new(scratch, s),
        }
    }

    /// Returns the total size in floats.
    pub(super) fn floats(s: &Sizes) -> usize {
        Self::sizes(s).iter().sum::<usize>() + TileScratch::floats(s)
    }

    /// Returns the sizes in floats of queries, scores, factors, and the kernel's buffer.
    fn sizes(s: &Sizes) -> [usize; 4] {
        let (queries, together) = (s.max_queries(), s.together());
        let all = s.queries_of_all();
        let together = together.max(all);
        [queries.max(all) * s.dk, together * PAGE, together, s.kernel_scratch()]
    }
}

/// Memory for packed operands and scores.
pub(super) struct TileScratch<'a> {
    pub(super) queries: &'a mut [u8],
    pub(super) keys: &'a mut [u8],
    pub(super) values: &'a mut [u8],
    pub(super) weights: &'a mut [u8],
    pub(super) scores: &'a mut [f32],
}

impl<'a> TileScratch<'a> {
    pub(super) fn new(scratch: &mut &'a mut [f32], s: &Sizes) -> TileScratch<'a> {
        let [queries, keys, values, weights, scores] = Self::sizes(s).map(|floats| take(scratch, floats));
        TileScratch {
            queries: bytemuck::cast_slice_mut(queries),
            keys: bytemuck::cast_slice_mut(keys),
            values: bytemuck::cast_slice_mut(values),
            weights: bytemuck::cast_slice_mut(weights),
            scores,
        }
    }

    /// Returns the total size in floats.
    pub(super) fn floats(s: &Sizes) -> usize {
        Self::sizes(s).iter().sum()
    }

    /// Returns the sizes in floats of queries, keys, values, weights, and scores.
    fn sizes(s: &Sizes) -> [usize; 5] {
        if !s.by_tiles {
            return [0; 5];
        }
        let (n, n_pages) = (TILE_QUERIES, pages_together(s.dk));
        // The kernel reads past the end of queries that do not fill their last tile.
        let queries = tiles::bytes_of_queries(s.max_queries() + n, s.dk);
        let (keys, values) = (
            tiles::bytes_of_keys(s.dk, n_pages),
            tiles::bytes_of_values(s.dv, n_pages),
        );
        let bytes = [queries, keys, values, tiles::bytes_of_weights(n, n_pages)];
        let [queries, keys, values, weights] = bytes.map(|bytes| bytes.div_ceil(size_of::<f32>()));
        [queries, keys, values, weights, tiles::n_scores(n, n_pages)]
    }
}
