//! The same for many queries by a unit that multiplies tiles of bfloat16, where the CPU has one.

use super::{CacheRows, KEYS};
use crate::dispatch::{Kernels, kernels};
use crate::generic::tile_attention::{PageRows, TileScores, TileValues, query_bytes, tile_scratch};
use crate::prefetch::CACHE_LINE;
use crate::simd::tiles::COLUMNS;

/// True if the CPU has a unit for tiles.
pub fn has_tiles() -> bool {
    kernels().tile_unit.is_some()
}

/// Bytes of the operand that [`put_queries`] writes for `n` queries of `d` elements.
pub fn bytes_of_queries(n: usize, d: usize) -> usize {
    n.next_multiple_of(COLUMNS) * query_bytes(d) + CACHE_LINE
}

/// Where the operand begins in the memory for it: the unit reads whole cache lines.
fn start(operand: &[u8]) -> usize {
    operand.as_ptr().align_offset(CACHE_LINE).min(CACHE_LINE)
}

/// Floats of scratch memory that [`scores`] and [`add_values`] need for rows of `d` elements and up to `n` queries.
pub fn scratch(d: usize, n: usize) -> usize {
    tile_scratch(d, n)
}

/// Writes queries of `d` elements as an operand of [`scores`].
///
/// # Panics
/// If the slices are not of as many queries, or the CPU has no unit for tiles.
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
    assert!(
        bytes_of_queries(n, d) <= out.len(),
        "{} bytes for {n} queries",
        out.len()
    );
    let put = kernels.over_tiles().put_query;
    let start = start(out);
    for (x, out) in queries
        .chunks_exact(d)
        .zip(out[start..].chunks_exact_mut(query_bytes(d)))
    {
        // SAFETY: the caller's promise, and slices of a query.
        unsafe { put(x.as_ptr(), d, out.as_mut_ptr()) }
    }
}

/// [`scores`](super::scores()) of `n` queries as [`put_queries`] wrote them, with some 16 bits of their products. Keys that are not `wanted` may be left out.
///
/// # Panics
/// If the type cannot be dequantized, a slice is too short, there are more than [`KEYS`] rows, or the CPU has no unit for tiles.
pub fn scores(keys: &CacheRows<'_>, wanted: u64, queries: &[u8], n: usize, out: &mut [f32], scratch: &mut [f32]) {
    // SAFETY: these kernels were chosen for this CPU.
    unsafe { scores_with(kernels(), keys, wanted, queries, n, out, scratch) }
}

/// [`scores`] with given kernels.
///
/// # Safety
/// The CPU has the kernels' instructions.
pub(crate) unsafe fn scores_with(
    kernels: &'static Kernels,
    keys: &CacheRows<'_>,
    wanted: u64,
    queries: &[u8],
    n: usize,
    out: &mut [f32],
    scratch: &mut [f32],
) {
    let rows = page_rows(kernels, keys, n, scratch);
    assert!(bytes_of_queries(n, keys.d) <= queries.len(), "{} bytes", queries.len());
    assert!(n * KEYS <= out.len(), "{} scores for {n} queries", out.len());
    let args = TileScores {
        keys: rows,
        wanted,
        queries: queries[start(queries)..].as_ptr(),
        n_queries: n,
        out: out.as_mut_ptr(),
        scratch: scratch.as_mut_ptr(),
    };
    keys.prefetch_all();
    // SAFETY: the caller's promise; all operands are as large as just asserted.
    unsafe { (kernels.over_tiles().scores)(&args) }
}

/// [`add_values`](super::add_values()), with weights and values rounded to bfloat16. False, with nothing changed, if a value that somebody has
/// seen is not finite: see there.
///
/// # Panics
/// As for [`scores`].
pub fn add_values(
    values: &CacheRows<'_>,
    seen: &[u64],
    weights: &[f32],
    factors: &[f32],
    out: &mut [f32],
    scratch: &mut [f32],
) -> bool {
    // SAFETY: these kernels were chosen for this CPU.
    unsafe { add_values_with(kernels(), values, seen, weights, factors, out, scratch) }
}

/// [`add_values`] with given kernels.
///
/// # Safety
/// The CPU has the kernels' instructions.
pub(crate) unsafe fn add_values_with(
    kernels: &'static Kernels,
    values: &CacheRows<'_>,
    seen: &[u64],
    weights: &[f32],
    factors: &[f32],
    out: &mut [f32],
    scratch: &mut [f32],
) -> bool {
    let n = factors.len();
    let rows = page_rows(kernels, values, n, scratch);
    assert!(out.len() == n * values.d, "{} sums for {n} queries", out.len());
    assert!(weights.len() >= n * KEYS, "{} weights for {n} queries", weights.len());
    let there = if values.n < KEYS { (1 << values.n) - 1 } else { u64::MAX };
    let args = TileValues {
        values: rows,
        seen: seen.iter().fold(0, |any, seen| any | seen) & there,
        weights: weights.as_ptr(),
        factors: factors.as_ptr(),
        n_queries: n,
        out: out.as_mut_ptr(),
        scratch: scratch.as_mut_ptr(),
    };
    values.prefetch_all();
    // SAFETY: the caller's promise; all operands are as large as just asserted.
    unsafe { (kernels.over_tiles().values)(&args) }
}

/// The rows as an operand of the kernels, and checks of their sizes and the scratch memory's.
fn page_rows(kernels: &'static Kernels, rows: &CacheRows<'_>, n_queries: usize, scratch: &[f32]) -> PageRows {
    rows.check(kernels, 0, usize::MAX);
    let needed = tile_scratch(rows.d, n_queries);
    assert!(
        needed <= scratch.len(),
        "scratch memory of {} floats, {needed} needed",
        scratch.len()
    );
    PageRows {
        rows: rows.bytes.as_ptr(),
        stride: rows.stride,
        n: rows.n,
        d: rows.d,
        dequantize: kernels.of_type(rows.ty).dequantize,
    }
}
