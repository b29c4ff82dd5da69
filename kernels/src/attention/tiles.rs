//! Attention of many queries to several pages at a time, for CPUs with specialized kernels: bf16 tiles (AMX)
//! or 16-bit integers (AVX2 and AVX-512).

use std::ops::Range;

use super::CacheRows;
use crate::dispatch::{AttentionTiles, Kernels, kernels};
use crate::generic::attention::Softmax;
use crate::generic::tile_attention::{PageRows, TileScores, TileValues, TileWeights, tile_scratch};
use crate::limits::KEYS;
use crate::prefetch::CACHE_LINE;
use crate::simd::tiles::COLUMNS;

/// Queries multiplied at a time; fewer take just as long.
pub const TILE_QUERIES: usize = COLUMNS;

pub use crate::generic::tile_attention::score_stride;

/// Returns true if this CPU has tile kernels for attention.
pub fn has_tiles() -> bool {
    kernels().attention_tiles.is_some()
}

/// Returns the kernels in use.
fn in_use() -> &'static AttentionTiles {
    kernels().tiled_attention()
}

/// Returns the size in bytes of the operand that [`pack_queries`] writes for `n` queries of `d` elements.
pub fn bytes_of_queries(n: usize, d: usize) -> usize {
    in_use().bytes_of_queries(n, d)
}

/// Returns the offset of the operand in its memory: the unit reads whole cache lines.
fn start(operand: &[u8]) -> usize {
    operand.as_ptr().align_offset(CACHE_LINE).min(CACHE_LINE)
}

/// Returns the size in bytes of the operand that [`pack_keys`] writes for `n_pages` pages.
pub fn bytes_of_keys(d: usize, n_pages: usize) -> usize {
    in_use().bytes_of_keys(d, n_pages)
}

/// Returns the size in bytes of the operand that [`pack_values`] writes for `n_pages` pages.
pub fn bytes_of_values(d: usize, n_pages: usize) -> usize {
    in_use().bytes_of_values(d, n_pages)
}

/// Returns the size in bytes of the operand that [`weights`] writes for `n` queries and `n_pages` pages.
pub fn bytes_of_weights(n: usize, n_pages: usize) -> usize {
    in_use().bytes_of_weights(n, n_pages)
}

/// Returns the number of floats for the scores of `n` queries with the keys of `n_pages` pages:
/// [`score_stride`] per query, with `n` rounded up to whole tiles.
pub fn n_scores(n: usize, n_pages: usize) -> usize {
    n.next_multiple_of(COLUMNS) * score_stride(n_pages)
}

/// Returns the scratch memory in floats for rows of `d` elements.
pub fn scratch(d: usize) -> usize {
    tile_scratch(d)
}

/// Packs queries of `d` elements as an operand of [`scores`].
///
/// # Panics
/// Panics if the slices do not match in size, or the CPU has no such kernels.
pub fn pack_queries(queries: &[f32], d: usize, out: &mut [u8]) {
    // SAFETY: `kernels()` selects kernels that this CPU supports.
    unsafe { pack_queries_with(kernels(), queries, d, out) }
}

/// Packs queries like [`pack_queries`] with the given kernels.
///
/// # Safety
/// The CPU supports `kernels`.
pub(crate) unsafe fn pack_queries_with(kernels: &'static Kernels, queries: &[f32], d: usize, out: &mut [u8]) {
    let n = queries.len() / d;
    assert!(
        queries.len() == n * d,
        "expected whole queries of {d} elements, found {} floats",
        queries.len()
    );
    let tiles = kernels.tiled_attention();
    assert!(
        tiles.bytes_of_queries(n, d) <= out.len(),
        "cannot pack {n} queries: the operand has only {} bytes",
        out.len()
    );
    let start = start(out);
    for (x, out) in queries
        .chunks_exact(d)
        .zip(out[start..].chunks_exact_mut((tiles.sizes.query)(d)))
    {
        // SAFETY: `x` and `out` are slices of one query each; the CPU supports the kernels (function
        // contract).
        unsafe { (tiles.pack_query)(x.as_ptr(), d, out.as_mut_ptr()) }
    }
}

/// A page of an operand.
#[derive(Clone, Copy, Debug)]
pub struct OperandPage {
    /// Index of the page.
    pub page: usize,
    /// Number of pages of the operand.
    pub n_pages: usize,
}

/// Packs the keys whose bits are set in `mask` as a page of an operand of [`scores`]. Returns false if a key
/// is not finite and the operand cannot represent that.
///
/// # Panics
/// Panics if the type cannot be dequantized, a slice is too short, the number of rows exceeds [`KEYS`], or the CPU has
/// no such kernels.
pub fn pack_keys(keys: &CacheRows<'_>, mask: u64, at: OperandPage, out: &mut [u8], scratch: &mut [f32]) -> bool {
    // SAFETY: `kernels()` selects kernels that this CPU supports.
    unsafe { pack_keys_with(kernels(), keys, mask, at, out, scratch) }
}

/// Packs keys like [`pack_keys`] with the given kernels.
///
/// # Safety
/// The CPU supports `kernels`.
pub(crate) unsafe fn pack_keys_with(
    kernels: &'static Kernels,
    keys: &CacheRows<'_>,
    mask: u64,
    at: OperandPage,
    out: &mut [u8],
    scratch: &mut [f32],
) -> bool {
    let needed = kernels.tiled_attention().bytes_of_keys(keys.d, at.n_pages);
    check_page(at, needed, out);
    let rows = page_rows(kernels, keys, mask, at, out, scratch);
    keys.prefetch_all();
    // SAFETY: `page_rows` and `check_page` checked all sizes; the CPU supports the kernels (function
    // contract).
    unsafe { (kernels.tiled_attention().pack_keys)(&rows) }
}

/// Packs the values whose bits are set in `mask` as a page of an operand of [`add_values`], rounded. Other
/// values are not read and become zero. Returns false if a value is not finite, because the operand could not
/// hide it from queries that do not see it.
///
/// # Panics
/// Panics if the type cannot be dequantized, a slice is too short, the number of rows exceeds [`KEYS`], or the CPU has
/// no such kernels.
pub fn pack_values(values: &CacheRows<'_>, mask: u64, at: OperandPage, out: &mut [u8], scratch: &mut [f32]) -> bool {
    // SAFETY: `kernels()` selects kernels that this CPU supports.
    unsafe { pack_values_with(kernels(), values, mask, at, out, scratch) }
}

/// Packs values like [`pack_values`] with the given kernels.
///
/// # Safety
/// The CPU supports `kernels`.
pub(crate) unsafe fn pack_values_with(
    kernels: &'static Kernels,
    values: &CacheRows<'_>,
    mask: u64,
    at: OperandPage,
    out: &mut [u8],
    scratch: &mut [f32],
) -> bool {
    let needed = kernels.tiled_attention().bytes_of_values(values.d, at.n_pages);
    check_page(at, needed, out);
    let rows = page_rows(kernels, values, mask, at, out, scratch);
    values.prefetch_all();
    // SAFETY: `page_rows` and `check_page` checked all sizes; the CPU supports the kernels (function
    // contract).
    unsafe { (kernels.tiled_attention().pack_values)(&rows) }
}

/// Operands of [`scores`].
#[derive(Clone, Copy, Debug)]
pub struct ScoreOperands<'a> {
    /// Keys written by [`pack_keys`].
    pub keys: &'a [u8],
    /// Number of elements per key.
    pub d: usize,
    /// Bit mask of the keys to score, one word per page. These keys must have been packed.
    pub mask: &'a [u64],
    /// Queries written by [`pack_queries`].
    pub queries: &'a [u8],
    /// Index of the first query.
    pub first: usize,
    /// Number of queries. Up to the next multiple of 32, the memory after them is read.
    pub n: usize,
}

/// Computes the scores of queries with keys to at least 12 bits: [`KEYS`] per page and query,
/// [`score_stride`] floats apart. Scores of keys whose bit in `mask` is clear are unspecified.
///
/// # Panics
/// Panics if a slice is too short, or the CPU has no such kernels.
pub fn scores(operands: &ScoreOperands<'_>, out: &mut [f32]) {
    // SAFETY: `kernels()` selects kernels that this CPU supports.
    unsafe { scores_with(kernels(), operands, out) }
}

/// Computes scores like [`scores`](scores()) with the given kernels.
///
/// # Safety
/// The CPU supports `kernels`.
pub(crate) unsafe fn scores_with(kernels: &'static Kernels, operands: &ScoreOperands<'_>, out: &mut [f32]) {
    let &ScoreOperands {
        keys,
        d,
        mask,
        queries,
        first,
        n,
    } = operands;
    let (n_pages, tiles) = (mask.len(), kernels.tiled_attention());
    let query_bytes = (tiles.sizes.query)(d);
    assert!(
        tiles.bytes_of_keys(d, n_pages) <= keys.len(),
        "cannot score {n_pages} pages: the keys have only {} bytes",
        keys.len()
    );
    // Queries are read in whole tiles.
    let end = first + n.next_multiple_of(COLUMNS);
    let queries = &queries[start(queries)..];
    assert!(end * query_bytes <= queries.len(), "{} bytes", queries.len());
    assert!(
        n_scores(n, n_pages) <= out.len(),
        "cannot store the scores of {n} queries in {} floats",
        out.len()
    );
    let args = TileScores {
        keys: keys[start(keys)..].as_ptr(),
        d,
        n_pages,
        mask: mask.as_ptr(),
        queries: queries[first * query_bytes..].as_ptr(),
        n_queries: n,
        out: out.as_mut_ptr(),
    };
    // SAFETY: the sizes of all operands were checked above; the CPU supports the kernels (function contract).
    unsafe { (tiles.scores)(&args) }
}

/// Softmax state of some queries, as in [`softmax_step`](super::softmax_step()).
#[derive(Debug)]
pub struct SoftmaxState<'a> {
    /// Largest score of each query so far.
    pub max: &'a mut [f32],
    /// Sum of `e^(score - max)` so far, per query.
    pub sum: &'a mut [f32],
    /// Output: factor by which earlier sums of values must be multiplied.
    pub factors: &'a mut [f32],
}

/// Operands of [`weights`].
#[derive(Debug)]
pub struct WeightOperands<'a> {
    /// Scores written by [`scores`](scores()); unspecified after the call.
    pub scores: &'a mut [f32],
    /// Number of pages of the operands.
    pub n_pages: usize,
    /// Range of pages to weight.
    pub pages: Range<usize>,
    /// Bit mask of the cells each token can see, one word per page.
    pub seen: &'a [u64],
    /// Number of queries per token.
    pub group: usize,
    /// Number of queries of the first token before these.
    pub before: usize,
    /// Values written by [`pack_values`] for all pages that a token sees.
    pub values: &'a [u8],
    /// Number of elements per value.
    pub d: usize,
    /// Softmax state of the queries.
    pub running: SoftmaxState<'a>,
}

/// Performs a [`softmax_step`](super::softmax_step()) over the scores of some pages. The weights are written
/// to `out` as an operand of [`add_values`] with the same values.
///
/// # Panics
/// Panics if a slice is too short, or the CPU has no such kernels.
pub fn weights(operands: WeightOperands<'_>, out: &mut [u8]) {
    // SAFETY: `kernels()` selects kernels that this CPU supports.
    unsafe { weights_with(kernels(), operands, out) }
}

/// Computes weights like [`weights`](weights()) with the given kernels.
///
/// # Safety
/// The CPU supports `kernels`.
pub(crate) unsafe fn weights_with(kernels: &'static Kernels, operands: WeightOperands<'_>, out: &mut [u8]) {
    let WeightOperands {
        scores,
        n_pages,
        pages,
        seen,
        group,
        before,
        values,
        d,
        running,
    } = operands;
    let (n, tiles) = (running.max.len(), kernels.tiled_attention());
    assert!(n_scores(n, n_pages) <= scores.len(), "{} scores", scores.len());
    assert!(
        tiles.bytes_of_weights(n, n_pages) <= out.len(),
        "cannot store the weights in {} bytes",
        out.len()
    );
    assert!(running.sum.len() == n && running.factors.len() == n, "not {n} queries");
    assert!(
        (before + n).div_ceil(group) * n_pages <= seen.len(),
        "expected masks for the tokens of {n} queries, found {} words",
        seen.len()
    );
    assert!(
        tiles.bytes_of_values(d, n_pages) <= values.len(),
        "packed values have only {} bytes",
        values.len()
    );
    check_pages(&pages, n_pages);
    let of_values = &values[start(values)..];
    let start = start(out);
    let softmax = Softmax {
        n_queries: n,
        group,
        before,
        n_pages: pages.len(),
        scores: scores[pages.start * KEYS..].as_mut_ptr(),
        stride: score_stride(n_pages),
        seen: seen[pages.start..].as_ptr(),
        seen_stride: n_pages,
        max: running.max.as_mut_ptr(),
        sum: running.sum.as_mut_ptr(),
        factors: running.factors.as_mut_ptr(),
        weights: out[start..].as_mut_ptr(),
        weight_stride: (tiles.sizes.weights)(n_pages),
    };
    let args = TileWeights {
        softmax,
        n_pages,
        first: pages.start,
        values: of_values.as_ptr(),
        d,
    };
    // SAFETY: all slices have `n` queries, `seen` has their tokens, and the pages exist, as checked above;
    // the CPU supports the kernels (function contract).
    unsafe { (tiles.weights)(&args) }
}

/// Operands of [`add_values`].
#[derive(Clone, Debug)]
pub struct ValueOperands<'a> {
    /// Values written by [`pack_values`].
    pub values: &'a [u8],
    /// Number of elements per value.
    pub d: usize,
    /// Number of pages of the operands.
    pub n_pages: usize,
    /// Range of pages to accumulate.
    pub pages: Range<usize>,
    /// Weights written by [`weights`](weights()); weights of hidden cells are zero or negligible.
    pub weights: &'a [u8],
    /// Factor for the earlier sums of each query.
    pub factors: &'a [f32],
}

/// Computes `out[q * d..] = factors[q] * out[q * d..] + sum_i weights[q][i] * values[i]`.
///
/// # Panics
/// Panics if a slice is too short, or the CPU has no such kernels.
pub fn add_values(operands: &ValueOperands<'_>, out: &mut [f32], scratch: &mut [f32]) {
    // SAFETY: `kernels()` selects kernels that this CPU supports.
    unsafe { add_values_with(kernels(), operands, out, scratch) }
}

/// Adds values like [`add_values`] with the given kernels.
///
/// # Safety
/// The CPU supports `kernels`.
pub(crate) unsafe fn add_values_with(
    kernels: &'static Kernels,
    operands: &ValueOperands<'_>,
    out: &mut [f32],
    scratch: &mut [f32],
) {
    let &ValueOperands {
        values,
        d,
        n_pages,
        ref pages,
        weights,
        factors,
    } = operands;
    let (n, tiles) = (factors.len(), kernels.tiled_attention());
    check_scratch(d, scratch);
    check_pages(pages, n_pages);
    assert!(
        tiles.bytes_of_values(d, n_pages) <= values.len(),
        "packed values have only {} bytes",
        values.len()
    );
    assert!(
        tiles.bytes_of_weights(n, n_pages) <= weights.len(),
        "packed weights have only {} bytes",
        weights.len()
    );
    assert!(
        out.len() == n * d,
        "expected the sums of {n} queries, found {} floats",
        out.len()
    );
    let args = TileValues {
        values: values[start(values)..].as_ptr(),
        n_pages,
        first: pages.start,
        n: pages.len(),
        d,
        weights: weights[start(weights)..].as_ptr(),
        factors: factors.as_ptr(),
        n_queries: n,
        out: out.as_mut_ptr(),
        scratch: scratch.as_mut_ptr(),
    };
    // SAFETY: the sizes of all operands were checked above; the CPU supports the kernels (function contract).
    unsafe { (tiles.values)(&args) }
}

fn check_pages(pages: &Range<usize>, n_pages: usize) {
    assert!(
        pages.start < pages.end && pages.end <= n_pages,
        "pages {pages:?} are out of range for an operand of {n_pages} pages"
    );
}

fn check_page(at: OperandPage, bytes: usize, out: &[u8]) {
    assert!(at.page < at.n_pages, "page {} of {}", at.page, at.n_pages);
    assert!(
        bytes <= out.len(),
        "operand has {} bytes, too few for {} pages",
        out.len(),
        at.n_pages
    );
}

/// Returns the kernels' view of the rows, after checking the sizes of the rows and the scratch memory.
fn page_rows(
    kernels: &'static Kernels,
    rows: &CacheRows<'_>,
    mask: u64,
    at: OperandPage,
    out: &mut [u8],
    scratch: &mut [f32],
) -> PageRows {
    rows.check(kernels, 0, usize::MAX);
    check_scratch(rows.d, scratch);
    let existing = if rows.n < KEYS { (1 << rows.n) - 1 } else { u64::MAX };
    let start = start(out);
    PageRows {
        rows: rows.bytes.as_ptr(),
        stride: rows.stride,
        n: rows.n,
        d: rows.d,
        dequantize: kernels.for_type(rows.ty).dequantize,
        mask: mask & existing,
        out: out[start..].as_mut_ptr(),
        n_pages: at.n_pages,
        page: at.page,
        scratch: scratch.as_mut_ptr(),
    }
}

fn check_scratch(d: usize, scratch: &[f32]) {
    let (needed, given) = (tile_scratch(d), scratch.len());
    assert!(
        needed <= given,
        "attention needs {needed} floats of scratch memory, found {given}"
    );
}

/// Sizes of operands, including the bytes to align them.
impl AttentionTiles {
    pub(crate) fn bytes_of_weights(&self, n: usize, n_pages: usize) -> usize {
        let sizes = &self.sizes;
        n.next_multiple_of(COLUMNS) * (sizes.weights)(n_pages) + CACHE_LINE
    }

    pub(crate) fn bytes_of_values(&self, d: usize, n_pages: usize) -> usize {
        let sizes = &self.sizes;
        n_pages * (sizes.values)(d) + CACHE_LINE
    }

    pub(crate) fn bytes_of_keys(&self, d: usize, n_pages: usize) -> usize {
        let sizes = &self.sizes;
        n_pages * (sizes.keys)(d) + CACHE_LINE
    }

    pub(crate) fn bytes_of_queries(&self, n: usize, d: usize) -> usize {
        let sizes = &self.sizes;
        n.next_multiple_of(COLUMNS) * (sizes.query)(d) + CACHE_LINE
    }
}
