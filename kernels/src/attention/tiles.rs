//! The same for many queries and several pages at a time, where the CPU has kernels that are faster for them: with bfloat16 by a unit that multiplies tiles, or with integers of
//! 16 bits.

use std::ops::Range;

use super::{CacheRows, KEYS};
use crate::dispatch::{AttentionTiles, Kernels, kernels};
use crate::generic::attention::Softmax;
use crate::generic::tile_attention::{PageRows, TileScores, TileValues, TileWeights, tile_scratch};
use crate::prefetch::CACHE_LINE;
use crate::simd::tiles::COLUMNS;

/// Queries that are multiplied at a time: fewer take as long.
pub const TILE_QUERIES: usize = COLUMNS;

pub use crate::generic::tile_attention::score_stride;

/// True if there are such kernels for the CPU.
pub fn has_tiles() -> bool {
    kernels().attention_tiles.is_some()
}

/// The kernels in use.
fn in_use() -> &'static AttentionTiles {
    kernels().attention_by_tiles()
}

/// Bytes of the operand that [`put_queries`] writes for `n` queries of `d` elements.
pub fn bytes_of_queries(n: usize, d: usize) -> usize {
    in_use().bytes_of_queries(n, d)
}

/// Where the operand begins in the memory for it: the unit reads whole cache lines.
fn start(operand: &[u8]) -> usize {
    operand.as_ptr().align_offset(CACHE_LINE).min(CACHE_LINE)
}

/// Bytes of the operand that [`put_keys`] writes for `n_pages`.
pub fn bytes_of_keys(d: usize, n_pages: usize) -> usize {
    in_use().bytes_of_keys(d, n_pages)
}

/// Bytes of the operand that [`put_values`] writes for `n_pages`.
pub fn bytes_of_values(d: usize, n_pages: usize) -> usize {
    in_use().bytes_of_values(d, n_pages)
}

/// Bytes of the operand that [`weights`] writes for `n` queries and `n_pages`.
pub fn bytes_of_weights(n: usize, n_pages: usize) -> usize {
    in_use().bytes_of_weights(n, n_pages)
}

/// Floats of the scores of `n` queries with the keys of `n_pages`: [`score_stride`] to each query, and to those that fill up tiles.
pub fn n_scores(n: usize, n_pages: usize) -> usize {
    n.next_multiple_of(COLUMNS) * score_stride(n_pages)
}

/// Floats of scratch memory that these functions need for rows of `d` elements.
pub fn scratch(d: usize) -> usize {
    tile_scratch(d)
}

/// Writes queries of `d` elements as an operand of [`scores`].
///
/// # Panics
/// If the slices are not of as many queries, or the CPU has no such kernels.
pub fn put_queries(queries: &[f32], d: usize, out: &mut [u8]) {
    // SAFETY: these kernels were chosen for this CPU.
    unsafe { put_queries_with(kernels(), queries, d, out) }
}

/// [`put_queries`] with given kernels.
///
/// # Safety
/// The CPU has the kernels' instructions.
pub(crate) unsafe fn put_queries_with(kernels: &'static Kernels, queries: &[f32], d: usize, out: &mut [u8]) {
    let n = queries.len() / d;
    assert!(queries.len() == n * d, "{} floats for queries of {d}", queries.len());
    let tiles = kernels.attention_by_tiles();
    assert!(
        tiles.bytes_of_queries(n, d) <= out.len(),
        "{} bytes for {n} queries",
        out.len()
    );
    let start = start(out);
    for (x, out) in queries
        .chunks_exact(d)
        .zip(out[start..].chunks_exact_mut((tiles.sizes.query)(d)))
    {
        // SAFETY: the caller's promise, and slices of a query.
        unsafe { (tiles.put_query)(x.as_ptr(), d, out.as_mut_ptr()) }
    }
}

/// One of the pages of an operand.
#[derive(Clone, Copy, Debug)]
pub struct PageOf {
    /// Which one, from 0.
    pub page: usize,
    /// Pages of the operand.
    pub n_pages: usize,
}

/// Writes the keys that are `wanted`, by bits, as a page of an operand of [`scores`]. False if one of them is not finite and the operand cannot say so.
///
/// # Panics
/// If the type cannot be dequantized, a slice is too short, there are more than [`KEYS`] rows, or the CPU has no such kernels.
pub fn put_keys(keys: &CacheRows<'_>, wanted: u64, at: PageOf, out: &mut [u8], scratch: &mut [f32]) -> bool {
    // SAFETY: these kernels were chosen for this CPU.
    unsafe { put_keys_with(kernels(), keys, wanted, at, out, scratch) }
}

/// [`put_keys`] with given kernels.
///
/// # Safety
/// The CPU has the kernels' instructions.
pub(crate) unsafe fn put_keys_with(
    kernels: &'static Kernels,
    keys: &CacheRows<'_>,
    wanted: u64,
    at: PageOf,
    out: &mut [u8],
    scratch: &mut [f32],
) -> bool {
    let needed = kernels.attention_by_tiles().bytes_of_keys(keys.d, at.n_pages);
    check_page(at, needed, out);
    let rows = page_rows(kernels, keys, wanted, at, out, scratch);
    keys.prefetch_all();
    // SAFETY: the caller's promise; all operands are as large as just asserted.
    unsafe { (kernels.attention_by_tiles().put_keys)(&rows) }
}

/// Writes the values that are `wanted`, by bits, as a page of an operand of [`add_values`], rounded. Others are not read but are zero. False if one of them
/// is not finite: what sees it and what does not cannot be told apart then.
///
/// # Panics
/// As for [`put_keys`].
pub fn put_values(values: &CacheRows<'_>, wanted: u64, at: PageOf, out: &mut [u8], scratch: &mut [f32]) -> bool {
    // SAFETY: these kernels were chosen for this CPU.
    unsafe { put_values_with(kernels(), values, wanted, at, out, scratch) }
}

/// [`put_values`] with given kernels.
///
/// # Safety
/// The CPU has the kernels' instructions.
pub(crate) unsafe fn put_values_with(
    kernels: &'static Kernels,
    values: &CacheRows<'_>,
    wanted: u64,
    at: PageOf,
    out: &mut [u8],
    scratch: &mut [f32],
) -> bool {
    let needed = kernels.attention_by_tiles().bytes_of_values(values.d, at.n_pages);
    check_page(at, needed, out);
    let rows = page_rows(kernels, values, wanted, at, out, scratch);
    values.prefetch_all();
    // SAFETY: the caller's promise; all operands are as large as just asserted.
    unsafe { (kernels.attention_by_tiles().put_values)(&rows) }
}

/// Operands of [`scores`].
#[derive(Clone, Copy, Debug)]
pub struct ScoreOperands<'a> {
    /// As [`put_keys`] wrote them.
    pub keys: &'a [u8],
    /// Elements of a key.
    pub d: usize,
    /// The keys that are wanted, by bits, a word for each page; they were when the operand was written.
    pub wanted: &'a [u64],
    /// As [`put_queries`] wrote them.
    pub queries: &'a [u8],
    /// The first query.
    pub first: usize,
    /// Queries from there on; memory that lies behind them up to a multiple of 32 queries is read.
    pub n: usize,
}

/// Products of queries with keys, with some 12 bits of them and more: [`KEYS`] of each page to each query, [`score_stride`] floats apart. Those with keys that are
/// not wanted are unspecified.
///
/// # Panics
/// If a slice is too short, or the CPU has no such kernels.
pub fn scores(operands: &ScoreOperands<'_>, out: &mut [f32]) {
    // SAFETY: these kernels were chosen for this CPU.
    unsafe { scores_with(kernels(), operands, out) }
}

/// [`scores`] with given kernels.
///
/// # Safety
/// The CPU has the kernels' instructions.
pub(crate) unsafe fn scores_with(kernels: &'static Kernels, operands: &ScoreOperands<'_>, out: &mut [f32]) {
    let &ScoreOperands {
        keys,
        d,
        wanted,
        queries,
        first,
        n,
    } = operands;
    let (n_pages, tiles) = (wanted.len(), kernels.attention_by_tiles());
    let query_bytes = (tiles.sizes.query)(d);
    assert!(
        tiles.bytes_of_keys(d, n_pages) <= keys.len(),
        "{} bytes of {n_pages} pages of keys",
        keys.len()
    );
    // What is read are whole tiles of queries.
    let end = first + n.next_multiple_of(COLUMNS);
    let queries = &queries[start(queries)..];
    assert!(end * query_bytes <= queries.len(), "{} bytes", queries.len());
    assert!(
        n_scores(n, n_pages) <= out.len(),
        "{} scores for {n} queries",
        out.len()
    );
    let args = TileScores {
        keys: keys[start(keys)..].as_ptr(),
        d,
        n_pages,
        wanted: wanted.as_ptr(),
        queries: queries[first * query_bytes..].as_ptr(),
        n_queries: n,
        out: out.as_mut_ptr(),
    };
    // SAFETY: the caller's promise; all operands are as large as just asserted.
    unsafe { (tiles.scores)(&args) }
}

/// What the online softmax knows of some queries: as [`softmax_step`](super::softmax_step()) has it.
#[derive(Debug)]
pub struct Running<'a> {
    /// The largest score of each so far.
    pub max: &'a mut [f32],
    /// The sum of e^(score - largest).
    pub sum: &'a mut [f32],
    /// Receives the factor for values that were summed up before.
    pub factors: &'a mut [f32],
}

/// Scores of some queries, which become weights.
#[derive(Debug)]
pub struct WeightOperands<'a> {
    /// As [`scores`] writes them; unspecified afterwards.
    pub scores: &'a mut [f32],
    /// Pages of the operands.
    pub n_pages: usize,
    /// Those that are looked at.
    pub pages: Range<usize>,
    /// The keys that each token has seen, by bits, a word for each page.
    pub seen: &'a [u64],
    /// Queries of a token.
    pub group: usize,
    /// Queries of the first token that come before these.
    pub before: usize,
    /// What the queries have gathered so far.
    pub running: Running<'a>,
}

/// [`softmax_step`](super::softmax_step()) with the scores of some pages. The weights go to `out` as an operand of [`add_values`].
///
/// # Panics
/// If a slice is too short, or the CPU has no such kernels.
pub fn weights(operands: WeightOperands<'_>, out: &mut [u8]) {
    // SAFETY: these kernels were chosen for this CPU.
    unsafe { weights_with(kernels(), operands, out) }
}

/// [`weights`] with given kernels.
///
/// # Safety
/// The CPU has the kernels' instructions.
pub(crate) unsafe fn weights_with(kernels: &'static Kernels, operands: WeightOperands<'_>, out: &mut [u8]) {
    let WeightOperands {
        scores,
        n_pages,
        pages,
        seen,
        group,
        before,
        running,
    } = operands;
    let (n, tiles) = (running.max.len(), kernels.attention_by_tiles());
    assert!(n_scores(n, n_pages) <= scores.len(), "{} scores", scores.len());
    assert!(
        tiles.bytes_of_weights(n, n_pages) <= out.len(),
        "{} bytes of weights",
        out.len()
    );
    assert!(running.sum.len() == n && running.factors.len() == n, "not {n} queries");
    assert!(
        (before + n).div_ceil(group) * n_pages <= seen.len(),
        "{} words for {n} queries",
        seen.len()
    );
    check_pages(&pages, n_pages);
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
    };
    // SAFETY: the caller's promise; all slices are of `n` queries, `seen` of their tokens, and the pages are there.
    unsafe { (tiles.weights)(&args) }
}

/// Operands of [`add_values`].
#[derive(Clone, Debug)]
pub struct ValueOperands<'a> {
    /// As [`put_values`] wrote them.
    pub values: &'a [u8],
    /// Elements of a value.
    pub d: usize,
    /// Pages of the operands.
    pub n_pages: usize,
    /// Those that are added.
    pub pages: Range<usize>,
    /// As [`weights`] wrote them; those of what is not seen are zero or next to it.
    pub weights: &'a [u8],
    /// A factor for the sums of each query so far.
    pub factors: &'a [f32],
}

/// `out[q * d..] = factors[q] out[q * d..] + sum_i weights[q][i] values[i]`
///
/// # Panics
/// As for [`scores`].
pub fn add_values(operands: &ValueOperands<'_>, out: &mut [f32], scratch: &mut [f32]) {
    // SAFETY: these kernels were chosen for this CPU.
    unsafe { add_values_with(kernels(), operands, out, scratch) }
}

/// [`add_values`] with given kernels.
///
/// # Safety
/// The CPU has the kernels' instructions.
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
    let (n, tiles) = (factors.len(), kernels.attention_by_tiles());
    check_scratch(d, scratch);
    check_pages(pages, n_pages);
    assert!(
        tiles.bytes_of_values(d, n_pages) <= values.len(),
        "{} bytes of values",
        values.len()
    );
    assert!(
        tiles.bytes_of_weights(n, n_pages) <= weights.len(),
        "{} bytes of weights",
        weights.len()
    );
    assert!(out.len() == n * d, "{} sums for {n} queries", out.len());
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
    // SAFETY: the caller's promise; all operands are as large as just asserted.
    unsafe { (tiles.values)(&args) }
}

fn check_pages(pages: &Range<usize>, n_pages: usize) {
    assert!(
        pages.start < pages.end && pages.end <= n_pages,
        "pages {pages:?} of {n_pages}"
    );
}

fn check_page(at: PageOf, bytes: usize, out: &[u8]) {
    assert!(at.page < at.n_pages, "page {} of {}", at.page, at.n_pages);
    assert!(bytes <= out.len(), "{} bytes for {} pages", out.len(), at.n_pages);
}

/// The rows as the kernels take them, and checks of their sizes and the scratch memory's.
fn page_rows(
    kernels: &'static Kernels,
    rows: &CacheRows<'_>,
    wanted: u64,
    at: PageOf,
    out: &mut [u8],
    scratch: &mut [f32],
) -> PageRows {
    rows.check(kernels, 0, usize::MAX);
    check_scratch(rows.d, scratch);
    let there = if rows.n < KEYS { (1 << rows.n) - 1 } else { u64::MAX };
    let start = start(out);
    PageRows {
        rows: rows.bytes.as_ptr(),
        stride: rows.stride,
        n: rows.n,
        d: rows.d,
        dequantize: kernels.of_type(rows.ty).dequantize,
        wanted: wanted & there,
        out: out[start..].as_mut_ptr(),
        n_pages: at.n_pages,
        page: at.page,
        scratch: scratch.as_mut_ptr(),
    }
}

fn check_scratch(d: usize, scratch: &[f32]) {
    let (needed, given) = (tile_scratch(d), scratch.len());
    assert!(needed <= given, "scratch memory of {given} floats, {needed} needed");
}

/// The sizes of operands, with room to align them.
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
