//! Attention of some queries to a page of the KV cache: scores, a step of the online softmax, and the weighted sum of
//! values.
//!
//! Keys and values are read in the type of the cache, once for all queries. All arithmetic is f32, except in
//! [`tiles`]. The result for a query does not depend on the other queries.

pub mod tiles;

use std::ops::Range;

use crate::GgmlType;
use crate::dispatch::{Kernels, RowKernels, kernels};
use crate::generic::attention::{Scores, Softmax, TILE_KEYS, Values};
use crate::generic::decode_attention::{Heads, QueryTile, SCORES, SUMS, VALUE_ROWS};
pub use crate::limits::KEYS;
use crate::prefetch::{CACHE_LINE, CacheLevel, prefetch};

/// Maximum queries per head that read F32, F16, BF16, and Q8_0 rows without conversion, all heads in memory order.
/// With more queries, rows of other types than F32 are converted to memory first.
pub const FEW_QUERIES: usize = 16;

/// F32 rows read together for many queries. One column of them stays in the L1 cache even if rows are a large
/// power of two apart.
const F32_ROWS: usize = 16;

/// Prefetch distance in bytes for few queries.
const PREFETCH_DISTANCE: usize = 24 << 10;

/// Floats of converted rows (unless rows are very long): half of the L1 cache.
const CONVERTED_FLOATS: usize = 4096;

/// Keys or values of a page, for one or several heads.
#[derive(Clone, Copy, Debug)]
pub struct CacheRows<'a> {
    /// Type of the rows; must support dequantization.
    pub ty: GgmlType,
    /// Bytes of the rows; may be unaligned.
    pub bytes: &'a [u8],
    /// Distance between rows of a head in bytes.
    pub stride: usize,
    /// Number of heads, at least 1.
    pub heads: usize,
    /// Distance between the rows of adjacent heads in bytes.
    pub head_stride: usize,
    /// Rows per head, at most [`KEYS`].
    pub n: usize,
    /// Elements of a row, a whole number of blocks.
    pub d: usize,
    /// The rows read next, with the same strides, which are prefetched; empty if unknown.
    pub next: &'a [u8],
}

/// Returns the scratch memory in floats that [`scores`] and [`add_values`] need for rows of `d` elements.
pub fn scratch(d: usize) -> usize {
    chunk(d) * d
}

/// Returns the number of rows converted together.
fn chunk(d: usize) -> usize {
    (CONVERTED_FLOATS / d.max(1)).clamp(2 * TILE_KEYS, KEYS) / TILE_KEYS * TILE_KEYS
}

/// Computes `out[q * KEYS + i] = sum_c keys[i][c] * queries[q * d + c]` for the keys `i` whose bits are set
/// in `mask`. Other scores are unspecified. Queries and scores are grouped by head, with the same number
/// for each head.
///
/// # Panics
/// Panics if the type cannot be dequantized, a slice is too short, or the number of rows exceeds [`KEYS`].
pub fn scores(keys: &CacheRows<'_>, mask: u64, queries: &[f32], out: &mut [f32], scratch: &mut [f32]) {
    // SAFETY: `kernels()` selects kernels that this CPU supports.
    unsafe { scores_with(kernels(), keys, mask, queries, out, scratch) }
}

/// Computes scores like [`scores`] with the given kernels.
///
/// # Safety
/// The CPU supports `kernels`.
pub(crate) unsafe fn scores_with(
    kernels: &'static Kernels,
    keys: &CacheRows<'_>,
    mask: u64,
    queries: &[f32],
    out: &mut [f32],
    scratch: &mut [f32],
) {
    let n_queries = keys.check(kernels, queries.len(), scratch.len());
    assert!(
        n_queries * KEYS <= out.len(),
        "cannot store the scores of {n_queries} queries in {} floats",
        out.len()
    );
    let queries_per_head = n_queries / keys.heads;
    if keys.is_read_in_place(queries_per_head) {
        let Some(chunk) = keys.range(mask) else { return };
        let args = Scores {
            keys: keys.bytes[chunk.first * keys.stride..].as_ptr(),
            stride: keys.stride,
            n: chunk.n,
            d: keys.d,
            queries: queries.as_ptr(),
            out: out[chunk.first..].as_mut_ptr(),
        };
        let (heads, kernels) = (
            keys.describe_heads(&chunk, queries_per_head),
            keys.in_place_kernels(kernels),
        );
        let mut tiles_of_head = [QueryTile::default(); FEW_QUERIES];
        let tiles_of_head = collect_tiles(
            split(0..queries_per_head, SCORES).map(|(first, n)| QueryTile { first, n, seen: mask }),
            &mut tiles_of_head,
        );
        // SAFETY: `check` and the assertion above cover the rows, queries, and scores of all heads. The chunk
        // starts at a multiple of `TILE_KEYS`.
        return unsafe { (kernels.scores)(&args, &heads, tiles_of_head) };
    }
    for chunk in keys.chunks(mask) {
        for head in 0..keys.heads {
            // SAFETY: the sizes were checked above, and the chunk is within the rows.
            let rows = unsafe { keys.read(kernels, &chunk, head, scratch) };
            let tiles = &kernels.attention.scores;
            for (first, n) in split(head * queries_per_head..(head + 1) * queries_per_head, tiles.len()) {
                let args = Scores {
                    keys: rows.start,
                    stride: rows.stride,
                    n: chunk.n,
                    d: keys.d,
                    queries: queries[first * keys.d..].as_ptr(),
                    out: out[first * KEYS + chunk.first..].as_mut_ptr(),
                };
                // SAFETY: the queries and scores are within the slices, checked above. A chunk starts at a
                // multiple of `TILE_KEYS`, so its rounded-up end is within the scores of the query.
                unsafe { tiles[n - 1](&args) }
            }
        }
    }
}

/// Performs a step of the online softmax for the queries of some tokens, with the same number of queries per
/// token.
///
/// The `scores` ([`KEYS`] per query) that are visible to the token (`seen`) become `e^(score - max)`; all others are
/// unspecified. `max` and `sum` are updated to the largest score and the sum of the weights so far. `factors` receives
/// the factors by which earlier sums of values must be multiplied.
///
/// # Panics
/// Panics if the slices differ in the number of queries, or that is not a multiple of the number of tokens.
pub fn softmax_step(scores: &mut [f32], seen: &[u64], max: &mut [f32], sum: &mut [f32], factors: &mut [f32]) {
    // SAFETY: `kernels()` selects kernels that this CPU supports.
    unsafe { softmax_step_with(kernels(), scores, seen, max, sum, factors) }
}

/// Performs a [`softmax_step`] with the given kernels.
///
/// # Safety
/// The CPU supports `kernels`.
pub(crate) unsafe fn softmax_step_with(
    kernels: &'static Kernels,
    scores: &mut [f32],
    seen: &[u64],
    max: &mut [f32],
    sum: &mut [f32],
    factors: &mut [f32],
) {
    let n = max.len();
    assert!(
        scores.len() == n * KEYS,
        "expected the scores of {n} queries, found {} floats",
        scores.len()
    );
    assert!(sum.len() == n && factors.len() == n, "not {n} queries");
    let group = group(n, seen.len());
    let args = Softmax {
        n_queries: n,
        group,
        before: 0,
        n_pages: 1,
        scores: scores.as_mut_ptr(),
        stride: KEYS,
        seen: seen.as_ptr(),
        seen_stride: 1,
        max: max.as_mut_ptr(),
        sum: sum.as_mut_ptr(),
        factors: factors.as_mut_ptr(),
        weights: std::ptr::null_mut(),
        weight_stride: 0,
    };
    // SAFETY: all slices have `n` queries and `seen` has their tokens, as checked above; the CPU supports the
    // kernels (function contract).
    unsafe { (kernels.attention.softmax_step)(&args) }
}

/// Computes `out[q * d..] = factors[q] * out[q * d..] + sum_i weights[q * KEYS + i] * values[i]` over the
/// cells `i` visible to the query's token (`seen`).
///
/// Every token has the same number of queries per head. Hidden values are not read. If no cell is visible,
/// `out` is unchanged. All operands are grouped by head.
///
/// # Panics
/// Panics if the type cannot be dequantized, a slice is too short, or the number of rows exceeds [`KEYS`].
pub fn add_values(
    values: &CacheRows<'_>,
    seen: &[u64],
    weights: &[f32],
    factors: &[f32],
    out: &mut [f32],
    scratch: &mut [f32],
) {
    // SAFETY: `kernels()` selects kernels that this CPU supports.
    unsafe { add_values_with(kernels(), values, seen, weights, factors, out, scratch) }
}

/// Adds values like [`add_values`] with the given kernels.
///
/// # Safety
/// The CPU supports `kernels`.
pub(crate) unsafe fn add_values_with(
    kernels: &'static Kernels,
    values: &CacheRows<'_>,
    seen: &[u64],
    weights: &[f32],
    factors: &[f32],
    out: &mut [f32],
    scratch: &mut [f32],
) {
    let n_queries = values.check(kernels, out.len(), scratch.len());
    assert!(
        factors.len() == n_queries && weights.len() >= n_queries * KEYS,
        "expected weights and factors of {n_queries} queries, found {} factors",
        factors.len()
    );
    let queries_per_head = n_queries / values.heads;
    let group = group(queries_per_head, seen.len());
    let any = seen.iter().fold(0, |any, seen| any | seen);
    if values.is_read_in_place(queries_per_head) {
        let Some(chunk) = values.range(any) else { return };
        let mut tiles_of_head = [QueryTile::default(); FEW_QUERIES];
        let tiles_of_head = collect_tiles(query_tiles(seen, group, &chunk), &mut tiles_of_head);
        let args = Values {
            values: values.bytes[chunk.first * values.stride..].as_ptr(),
            stride: values.stride,
            seen: chunk.bits(any),
            d: values.d,
            weights: weights[chunk.first..].as_ptr(),
            factors: factors.as_ptr(),
            out: out.as_mut_ptr(),
        };
        let (heads, kernels) = (
            values.describe_heads(&chunk, queries_per_head),
            values.in_place_kernels(kernels),
        );
        // SAFETY: `check` and the assertion cover all rows, weights, factors, sums, and queries.
        return unsafe { (kernels.values)(&args, &heads, tiles_of_head) };
    }
    for chunk in values.chunks(any) {
        for head in 0..values.heads {
            // SAFETY: the sizes were checked above, and the chunk is within the rows.
            let rows = unsafe { values.read(kernels, &chunk, head, scratch) };
            let tiles = &kernels.attention.values;
            for (first, n) in same_mask_ranges(seen, group).flat_map(|queries| split(queries, tiles.len())) {
                let seen = seen[first / group];
                let of_chunk = chunk.bits(seen);
                if of_chunk == 0 {
                    continue;
                }
                let is_first = seen.trailing_zeros() as usize >= chunk.first;
                let first = head * queries_per_head + first;
                let args = Values {
                    values: rows.start,
                    stride: rows.stride,
                    seen: of_chunk,
                    d: values.d,
                    weights: weights[first * KEYS + chunk.first..].as_ptr(),
                    factors: if is_first {
                        factors[first..].as_ptr()
                    } else {
                        std::ptr::null()
                    },
                    out: out[first * values.d..].as_mut_ptr(),
                };
                // SAFETY: `rows` holds the chunk; the sizes of the other slices were checked above.
                unsafe { tiles[n - 1](&args) }
            }
        }
    }
}

/// Splits a range into parts of at most `most`, as equal as possible. Yields the start and the length of each
/// part.
fn split(range: Range<usize>, most: usize) -> impl Iterator<Item = (usize, usize)> {
    let n_parts = range.len().div_ceil(most);
    let mut at = range.start;
    (0..n_parts).map(move |part| {
        let n = (range.end - at).div_ceil(n_parts - part);
        at += n;
        (at - n, n)
    })
}

/// Splits the queries of a head, `group` per token, into tiles that see the same rows of a chunk.
fn query_tiles(seen: &[u64], group: usize, chunk: &Chunk) -> impl Iterator<Item = QueryTile> {
    let tiles_of_head = same_mask_ranges(seen, group).flat_map(|queries| split(queries, SUMS));
    let seeing = tiles_of_head.map(move |(first, n)| QueryTile {
        first,
        n,
        seen: chunk.bits(seen[first / group]),
    });
    seeing.filter(|part| part.seen != 0)
}

/// Collects tiles of a head's queries; the number of tiles is at most the number of queries.
fn collect_tiles(tiles_of_head: impl Iterator<Item = QueryTile>, to: &mut [QueryTile; FEW_QUERIES]) -> &[QueryTile] {
    let n = tiles_of_head.zip(&mut *to).fold(0, |n, (part, to)| {
        *to = part;
        n + 1
    });
    &to[..n]
}

/// Returns the number of queries per token.
fn group(n_queries: usize, n_tokens: usize) -> usize {
    assert!(
        n_tokens > 0 && n_queries.is_multiple_of(n_tokens),
        "expected whole tokens, found {n_queries} queries of {n_tokens} tokens"
    );
    n_queries / n_tokens
}

/// Groups the queries of adjacent tokens that see the same cells.
fn same_mask_ranges(seen: &[u64], group: usize) -> impl Iterator<Item = Range<usize>> + '_ {
    let mut end = 0;
    seen.chunk_by(|a, b| a == b).map(move |same| {
        end += same.len() * group;
        end - same.len() * group..end
    })
}

/// A range of key or value rows.
struct Chunk {
    first: usize,
    n: usize,
}

impl Chunk {
    /// Returns the smallest range that contains the rows with set bits and starts at a multiple of
    /// [`TILE_KEYS`].
    fn with(&self, mask: u64) -> Option<Chunk> {
        let bits = self.bits(mask);
        if bits == 0 {
            return None;
        }
        let skipped = bits.trailing_zeros() as usize / TILE_KEYS * TILE_KEYS;
        Some(Chunk {
            first: self.first + skipped,
            n: bits.ilog2() as usize + 1 - skipped,
        })
    }

    /// Returns the bits of a page's mask that belong to these rows.
    fn bits(&self, page: u64) -> u64 {
        let all = if self.n < KEYS { (1 << self.n) - 1 } else { u64::MAX };
        page >> self.first & all
    }
}

/// Rows of a head, in place or converted to f32.
struct F32Rows {
    start: *const u8,
    stride: usize,
}

impl CacheRows<'_> {
    /// Checks all sizes and returns the number of queries of all heads, which have `floats` elements
    /// together.
    fn check(&self, kernels: &'static Kernels, floats: usize, scratch: usize) -> usize {
        let row_bytes = self.ty.row_bytes(self.d);
        let row_bytes = row_bytes
            .unwrap_or_else(|| panic!("{}: expected whole blocks, found rows of {} elements", self.ty, self.d));
        kernels.for_type(self.ty);
        assert!(self.n <= KEYS, "page has {} rows, more than the maximum", self.n);
        let last_row = self.n.saturating_sub(1).checked_mul(self.stride);
        let last_head = self.heads.saturating_sub(1).checked_mul(self.head_stride);
        let end = last_row
            .zip(last_head)
            .and_then(|(row, head)| row.checked_add(head)?.checked_add(row_bytes));
        assert!(
            self.n == 0 || end.is_some_and(|end| end <= self.bytes.len()),
            "page needs more than {} bytes for {} rows of {} heads",
            self.bytes.len(),
            self.n,
            self.heads
        );
        assert!(
            self.d > 0 && floats.is_multiple_of(self.d),
            "expected whole rows of {} elements, found {floats} floats",
            self.d
        );
        let n_queries = floats / self.d;
        assert!(
            self.heads > 0 && n_queries.is_multiple_of(self.heads),
            "expected whole heads, found {n_queries} queries of {} heads",
            self.heads
        );
        let needed = self::scratch(self.d);
        assert!(
            needed <= scratch,
            "attention needs {needed} floats of scratch memory, found {scratch}"
        );
        n_queries
    }

    /// Yields chunks of the rows with set bits, without clear bits at either end.
    fn chunks(&self, mask: u64) -> impl Iterator<Item = Chunk> + use<> {
        let size = if self.ty == GgmlType::F32 {
            F32_ROWS
        } else {
            chunk(self.d)
        };
        let mask = mask & Chunk { first: 0, n: self.n }.bits(u64::MAX);
        (0..self.n)
            .step_by(size)
            .filter_map(move |first| Chunk { first, n: size }.with(mask))
    }

    /// Returns the range from the first row with a set bit to the last.
    fn range(&self, mask: u64) -> Option<Chunk> {
        Chunk { first: 0, n: self.n }.with(mask)
    }

    /// Prefetches the next rows of a head that correspond to `chunk`.
    fn prefetch_next(&self, chunk: &Chunk, head: usize) {
        let row_bytes = self.d / self.ty.block_size() * self.ty.block_bytes();
        let next = self.next.get(head * self.head_stride..).unwrap_or_default();
        for row in next.chunks(self.stride.max(1)).skip(chunk.first).take(chunk.n) {
            row[..row_bytes.min(row.len())]
                .chunks(CACHE_LINE)
                .for_each(|line| prefetch(line.as_ptr(), CacheLevel::Second));
        }
    }

    /// Prefetches the first rows, which no earlier read prefetches. Reading them prefetches the rows that
    /// follow.
    pub fn prefetch_first(&self) {
        let row_bytes = self.d / self.ty.block_size() * self.ty.block_bytes();
        for row in 0..self.rows_ahead().min(self.n) {
            for head in 0..self.heads {
                let start = self
                    .bytes
                    .as_ptr()
                    .wrapping_add(row * self.stride + head * self.head_stride);
                for at in (0..row_bytes).step_by(CACHE_LINE) {
                    prefetch(start.wrapping_add(at), CacheLevel::Second);
                }
            }
        }
    }

    /// Returns the prefetch distance in rows for few queries.
    fn rows_ahead(&self) -> usize {
        (PREFETCH_DISTANCE / self.stride.max(1)).clamp(VALUE_ROWS, KEYS)
    }

    /// Prefetches the rows that are read next.
    fn prefetch_all(&self) {
        self.prefetch_next(&Chunk { first: 0, n: self.n }, 0);
    }

    /// Returns true if rows of all heads are read in memory order without conversion.
    fn is_read_in_place(&self, n_queries: usize) -> bool {
        n_queries <= FEW_QUERIES && matches!(self.ty, GgmlType::F32 | GgmlType::F16 | GgmlType::BF16 | GgmlType::Q8_0)
    }

    /// Returns the kernels that read this type without conversion.
    fn in_place_kernels(&self, kernels: &'static Kernels) -> &'static RowKernels {
        match self.ty {
            GgmlType::F16 => &kernels.attention.f16,
            GgmlType::BF16 => &kernels.attention.bf16,
            GgmlType::Q8_0 => &kernels.attention.q8_0,
            _ => &kernels.attention.f32,
        }
    }

    /// Describes the heads for the rows that start with a chunk.
    fn describe_heads(&self, chunk: &Chunk, n_queries: usize) -> Heads {
        Heads {
            n: self.heads,
            stride: self.head_stride,
            n_queries,
            rows: self.n - chunk.first,
            next: if self.next.is_empty() {
                std::ptr::null()
            } else {
                self.next.as_ptr()
            },
            ahead: self.rows_ahead(),
        }
    }

    /// Returns the rows of a chunk and a head as f32. F32 rows are used in place; other types are converted
    /// to `scratch`.
    ///
    /// # Safety
    /// - The CPU supports `kernels`.
    /// - The sizes were [checked](CacheRows::check), `chunk` is one of the [chunks](CacheRows::chunks), and
    ///   `head < self.heads`.
    unsafe fn read(&self, kernels: &'static Kernels, chunk: &Chunk, head: usize, scratch: &mut [f32]) -> F32Rows {
        let start = self.bytes[chunk.first * self.stride + head * self.head_stride..].as_ptr();
        self.prefetch_next(chunk, head);
        if self.ty == GgmlType::F32 {
            return F32Rows {
                start,
                stride: self.stride,
            };
        }
        let dequantize = kernels.for_type(self.ty).dequantize;
        for (i, row) in scratch.chunks_exact_mut(self.d).enumerate().take(chunk.n) {
            // SAFETY: row `i` of the chunk is within `bytes`, and `row` has `d` floats (function contract).
            unsafe { dequantize(start.add(i * self.stride), row.as_mut_ptr(), self.d) }
        }
        F32Rows {
            start: scratch.as_ptr().cast(),
            stride: self.d * size_of::<f32>(),
        }
    }
}
