//! The same for many queries by a unit that multiplies tiles of bfloat16, where the CPU has one.

use super::{CacheRows, KEYS};
use crate::dispatch::{Kernels, kernels};
use crate::generic::tile_attention::{
    PageRows, TileScores, TileValues, key_bytes, query_bytes, tile_scratch, value_bytes,
};
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

/// Bytes of the operand that [`put_keys`] writes.
pub fn bytes_of_keys(d: usize) -> usize {
    key_bytes(d)
}

/// Bytes of the operand that [`put_values`] writes.
pub fn bytes_of_values(d: usize) -> usize {
    value_bytes(d)
}

/// Floats of scratch memory that these functions need for rows of `d` elements and up to `n` queries.
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

/// Writes the keys that are `wanted`, by bits, as an operand of [`scores`], each in two parts.
///
/// # Panics
/// If the type cannot be dequantized, a slice is too short, there are more than [`KEYS`] rows, or the CPU has no unit for tiles.
pub fn put_keys(keys: &CacheRows<'_>, wanted: u64, out: &mut [u8], scratch: &mut [f32]) {
    // SAFETY: these kernels were chosen for this CPU.
    unsafe { put_keys_with(kernels(), keys, wanted, out, scratch) }
}

/// [`put_keys`] with given kernels.
///
/// # Safety
/// The CPU has the kernels' instructions.
pub(crate) unsafe fn put_keys_with(
    kernels: &'static Kernels,
    keys: &CacheRows<'_>,
    wanted: u64,
    out: &mut [u8],
    scratch: &mut [f32],
) {
    assert!(bytes_of_keys(keys.d) <= out.len(), "{} bytes for keys", out.len());
    let rows = page_rows(kernels, keys, wanted, out, scratch);
    keys.prefetch_all();
    // SAFETY: the caller's promise; all operands are as large as just asserted.
    unsafe { (kernels.over_tiles().put_keys)(&rows) }
}

/// Writes the values that are `wanted`, by bits, as an operand of [`add_values`], rounded to bfloat16. Others are not read. False if one of them is
/// not finite: what sees it and what does not cannot be told apart then.
///
/// # Panics
/// As for [`put_keys`].
pub fn put_values(values: &CacheRows<'_>, wanted: u64, out: &mut [u8], scratch: &mut [f32]) -> bool {
    // SAFETY: these kernels were chosen for this CPU.
    unsafe { put_values_with(kernels(), values, wanted, out, scratch) }
}

/// [`put_values`] with given kernels.
///
/// # Safety
/// The CPU has the kernels' instructions.
pub(crate) unsafe fn put_values_with(
    kernels: &'static Kernels,
    values: &CacheRows<'_>,
    wanted: u64,
    out: &mut [u8],
    scratch: &mut [f32],
) -> bool {
    assert!(bytes_of_values(values.d) <= out.len(), "{} bytes for values", out.len());
    let rows = page_rows(kernels, values, wanted, out, scratch);
    values.prefetch_all();
    // SAFETY: the caller's promise; all operands are as large as just asserted.
    unsafe { (kernels.over_tiles().put_values)(&rows) }
}

/// Operands of [`scores`].
#[derive(Clone, Copy, Debug)]
pub struct ScoreOperands<'a> {
    /// As [`put_keys`] wrote them.
    pub keys: &'a [u8],
    /// Elements of a key.
    pub d: usize,
    /// The keys that are wanted, by bits; they were when the operand was written.
    pub wanted: u64,
    /// As [`put_queries`] wrote them.
    pub queries: &'a [u8],
    /// The first query.
    pub first: usize,
    /// Queries from there on; memory that lies behind them up to a multiple of 32 queries is read.
    pub n: usize,
}

/// [`scores`](super::scores()), with some 16 bits of their products. Keys that are not wanted may be left out.
///
/// # Panics
/// If a slice is too short, or the CPU has no unit for tiles.
pub fn scores(operands: &ScoreOperands<'_>, out: &mut [f32], scratch: &mut [f32]) {
    // SAFETY: these kernels were chosen for this CPU.
    unsafe { scores_with(kernels(), operands, out, scratch) }
}

/// [`scores`] with given kernels.
///
/// # Safety
/// The CPU has the kernels' instructions.
pub(crate) unsafe fn scores_with(
    kernels: &'static Kernels,
    operands: &ScoreOperands<'_>,
    out: &mut [f32],
    scratch: &mut [f32],
) {
    let &ScoreOperands {
        keys,
        d,
        queries,
        first,
        n,
        ..
    } = operands;
    check_scratch(d, n, scratch);
    assert!(bytes_of_keys(d) <= keys.len(), "{} bytes of keys", keys.len());
    // What is read are whole tiles of queries.
    let end = first + n.next_multiple_of(COLUMNS);
    let queries = &queries[start(queries)..];
    assert!(end * query_bytes(d) <= queries.len(), "{} bytes", queries.len());
    assert!(n * KEYS <= out.len(), "{} scores for {n} queries", out.len());
    let args = TileScores {
        keys: keys[start(keys)..].as_ptr(),
        d,
        wanted: operands.wanted,
        queries: queries[first * query_bytes(d)..].as_ptr(),
        n_queries: n,
        out: out.as_mut_ptr(),
        scratch: scratch.as_mut_ptr(),
    };
    // SAFETY: the caller's promise; all operands are as large as just asserted.
    unsafe { (kernels.over_tiles().scores)(&args) }
}

/// [`add_values`](super::add_values()) of values of `d` elements as [`put_values`] wrote them, with weights rounded to bfloat16; the weights of what is not seen
/// are zero or next to it.
///
/// # Panics
/// As for [`scores`].
pub fn add_values(values: &[u8], d: usize, weights: &[f32], factors: &[f32], out: &mut [f32], scratch: &mut [f32]) {
    // SAFETY: these kernels were chosen for this CPU.
    unsafe { add_values_with(kernels(), values, d, weights, factors, out, scratch) }
}

/// [`add_values`] with given kernels.
///
/// # Safety
/// The CPU has the kernels' instructions.
pub(crate) unsafe fn add_values_with(
    kernels: &'static Kernels,
    values: &[u8],
    d: usize,
    weights: &[f32],
    factors: &[f32],
    out: &mut [f32],
    scratch: &mut [f32],
) {
    let n = factors.len();
    check_scratch(d, n, scratch);
    assert!(bytes_of_values(d) <= values.len(), "{} bytes of values", values.len());
    assert!(out.len() == n * d, "{} sums for {n} queries", out.len());
    assert!(weights.len() >= n * KEYS, "{} weights for {n} queries", weights.len());
    let args = TileValues {
        values: values[start(values)..].as_ptr(),
        d,
        weights: weights.as_ptr(),
        factors: factors.as_ptr(),
        n_queries: n,
        out: out.as_mut_ptr(),
        scratch: scratch.as_mut_ptr(),
    };
    // SAFETY: the caller's promise; all operands are as large as just asserted.
    unsafe { (kernels.over_tiles().values)(&args) }
}

/// The rows as the kernels take them, and checks of their sizes and the scratch memory's.
fn page_rows(
    kernels: &'static Kernels,
    rows: &CacheRows<'_>,
    wanted: u64,
    out: &mut [u8],
    scratch: &mut [f32],
) -> PageRows {
    rows.check(kernels, 0, usize::MAX);
    check_scratch(rows.d, 0, scratch);
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
        scratch: scratch.as_mut_ptr(),
    }
}

fn check_scratch(d: usize, n: usize, scratch: &[f32]) {
    let needed = tile_scratch(d, n);
    let given = scratch.len();
    assert!(needed <= given, "scratch memory of {given} floats, {needed} needed");
}
