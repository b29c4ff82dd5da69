//! Attention of some queries to a page of cells: products with its keys, a step of the online softmax, and the weighted sum of its values.
//!
//! Keys and values are read as the cache holds them, once for all queries. Everything is computed in f32, but for [`tiles`]. The result for a query does not
//! depend on which other queries are computed with it.

pub mod tiles;

use std::ops::Range;

use crate::GgmlType;
use crate::dispatch::{ByRows, Kernels, kernels};
use crate::generic::attention::{KEYS_OF_TILE, Scores, Softmax, Values};
use crate::generic::decode_attention::{Heads, QueryTile, ROWS_OF_TILE, SCORES, SUMS};
use crate::prefetch::{CACHE_LINE, CacheLevel, prefetch};

/// Most cells of a page: each is a bit of a word.
pub const KEYS: usize = 64;

/// Rows of floats are read as they lie for up to as many queries of a head, those of all heads side by side. For more F16 and BF16 are converted to memory first.
pub const FEW_QUERIES: usize = 16;

/// Rows of F32 that are read in place together for more queries: few enough that a column of them stays in the first-level cache, even where rows are a large
/// power of two apart.
const IN_PLACE: usize = 16;

/// Bytes that rows of few queries are fetched ahead of their use.
const AHEAD: usize = 12288;

/// Floats that converted rows take up, if rows are not too long: half of a first-level cache.
const PANEL: usize = 4096;

/// The keys or the values of a page, of one head or of several.
#[derive(Clone, Copy, Debug)]
pub struct CacheRows<'a> {
    /// A type that can be dequantized.
    pub ty: GgmlType,
    /// The rows; needs no alignment.
    pub bytes: &'a [u8],
    /// Bytes from one row of a head to the next.
    pub stride: usize,
    /// Heads, at least one.
    pub heads: usize,
    /// Bytes from the row of one head to that of the next.
    pub head_stride: usize,
    /// Rows of a head, at most [`KEYS`].
    pub n: usize,
    /// Elements of a row: whole blocks of the type.
    pub d: usize,
    /// Bytes of the rows that are read next, if those are known: as far apart, they are fetched while these are read.
    pub next: &'a [u8],
}

/// Floats of scratch memory that [`scores`] and [`add_values`] need for rows of `d` elements.
pub fn scratch(d: usize) -> usize {
    chunk(d) * d
}

/// Rows that are converted together.
fn chunk(d: usize) -> usize {
    (PANEL / d.max(1)).clamp(2 * KEYS_OF_TILE, KEYS) / KEYS_OF_TILE * KEYS_OF_TILE
}

/// `out[q * KEYS + i] = sum_c keys[i][c] queries[q * d + c]` for the keys `i` whose bits are set in `wanted`. The products with other
/// keys are unspecified. Queries and products of a head lie together, as many for each head.
///
/// # Panics
/// If the type cannot be dequantized, a slice is too short, or there are more than [`KEYS`] rows.
pub fn scores(keys: &CacheRows<'_>, wanted: u64, queries: &[f32], out: &mut [f32], scratch: &mut [f32]) {
    // SAFETY: these kernels were chosen for this CPU.
    unsafe { scores_with(kernels(), keys, wanted, queries, out, scratch) }
}

/// [`scores`] with given kernels.
///
/// # Safety
/// The CPU has the kernels' instructions.
pub(crate) unsafe fn scores_with(
    kernels: &'static Kernels,
    keys: &CacheRows<'_>,
    wanted: u64,
    queries: &[f32],
    out: &mut [f32],
    scratch: &mut [f32],
) {
    let n_queries = keys.check(kernels, queries.len(), scratch.len());
    assert!(
        n_queries * KEYS <= out.len(),
        "{} scores for {n_queries} queries",
        out.len()
    );
    let of_head = n_queries / keys.heads;
    if keys.by_rows(of_head) {
        let Some(chunk) = keys.range(wanted) else { return };
        let args = Scores {
            keys: keys.bytes[chunk.first * keys.stride..].as_ptr(),
            stride: keys.stride,
            n: chunk.n,
            d: keys.d,
            queries: queries.as_ptr(),
            out: out[chunk.first..].as_mut_ptr(),
        };
        let (heads, kernels) = (keys.side_by_side(&chunk, of_head), keys.read_in_place(kernels));
        let mut parts = [QueryTile::default(); FEW_QUERIES];
        let parts = put_parts(
            split(0..of_head, SCORES).map(|(first, n)| QueryTile { first, n, seen: wanted }),
            &mut parts,
        );
        // SAFETY: rows, queries and scores of all heads lie within the slices as just asserted; the chunk starts as below.
        return unsafe { (kernels.scores)(&args, &heads, parts) };
    }
    for chunk in keys.chunks(wanted) {
        for head in 0..keys.heads {
            // SAFETY: the caller's promise, and the chunk lies within the rows.
            let rows = unsafe { keys.read(kernels, &chunk, head, scratch) };
            let tiles = &kernels.attention.scores;
            for (first, n) in split(head * of_head..(head + 1) * of_head, tiles.len()) {
                let args = Scores {
                    keys: rows.start,
                    stride: rows.stride,
                    n: chunk.n,
                    d: keys.d,
                    queries: queries[first * keys.d..].as_ptr(),
                    out: out[first * KEYS + chunk.first..].as_mut_ptr(),
                };
                // SAFETY: the queries and their scores lie within the slices as just asserted. A chunk starts at a multiple of
                // `KEYS_OF_TILE`, so that rounded up it ends within the scores of its query.
                unsafe { tiles[n - 1](&args) }
            }
        }
    }
}

/// A step of the online softmax of some tokens' queries, as many for each token. Of `scores`, [`KEYS`] of each query, those that the token
/// has `seen` become e^(score - largest); the others are unspecified. `max` and `sum` are the largest score and the sum of these weights so
/// far; `factors` are what sums of values so far have to be multiplied with.
///
/// # Panics
/// If the slices are not of as many queries, or these not of whole tokens.
pub fn softmax_step(scores: &mut [f32], seen: &[u64], max: &mut [f32], sum: &mut [f32], factors: &mut [f32]) {
    // SAFETY: these kernels were chosen for this CPU.
    unsafe { softmax_step_with(kernels(), scores, seen, max, sum, factors) }
}

/// [`softmax_step`] with given kernels.
///
/// # Safety
/// The CPU has the kernels' instructions.
pub(crate) unsafe fn softmax_step_with(
    kernels: &'static Kernels,
    scores: &mut [f32],
    seen: &[u64],
    max: &mut [f32],
    sum: &mut [f32],
    factors: &mut [f32],
) {
    let n = max.len();
    assert!(scores.len() == n * KEYS, "{} scores for {n} queries", scores.len());
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
    // SAFETY: all slices are of `n` queries, and `seen` of their tokens; the rest is the caller's promise.
    unsafe { (kernels.attention.softmax_step)(&args) }
}

/// `out[q * d..] = factors[q] out[q * d..] + sum_i weights[q * KEYS + i] values[i]` over the cells `i` that the query's token has `seen`:
/// each token has as many queries of each head. Other values are not touched. Where nothing is seen, `out` stays as it is. What belongs to a head lies together.
///
/// # Panics
/// If the type cannot be dequantized, a slice is too short, or there are more than [`KEYS`] rows.
pub fn add_values(
    values: &CacheRows<'_>,
    seen: &[u64],
    weights: &[f32],
    factors: &[f32],
    out: &mut [f32],
    scratch: &mut [f32],
) {
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
) {
    let n_queries = values.check(kernels, out.len(), scratch.len());
    assert!(
        factors.len() == n_queries && weights.len() >= n_queries * KEYS,
        "weights of {} queries for {n_queries}",
        factors.len()
    );
    let of_head = n_queries / values.heads;
    let group = group(of_head, seen.len());
    let any = seen.iter().fold(0, |any, seen| any | seen);
    if values.by_rows(of_head) {
        let Some(chunk) = values.range(any) else { return };
        let mut parts = [QueryTile::default(); FEW_QUERIES];
        let parts = put_parts(query_tiles(seen, group, &chunk), &mut parts);
        let args = Values {
            values: values.bytes[chunk.first * values.stride..].as_ptr(),
            stride: values.stride,
            seen: chunk.bits(any),
            d: values.d,
            weights: weights[chunk.first..].as_ptr(),
            factors: factors.as_ptr(),
            out: out.as_mut_ptr(),
        };
        let (heads, kernels) = (values.side_by_side(&chunk, of_head), values.read_in_place(kernels));
        // SAFETY: rows, weights, factors and sums of all heads lie within the slices as just asserted; parts are of queries that there are.
        return unsafe { (kernels.values)(&args, &heads, parts) };
    }
    for chunk in values.chunks(any) {
        for head in 0..values.heads {
            // SAFETY: the caller's promise, and the chunk lies within the rows.
            let rows = unsafe { values.read(kernels, &chunk, head, scratch) };
            let tiles = &kernels.attention.values;
            for (first, n) in alike(seen, group).flat_map(|queries| split(queries, tiles.len())) {
                let seen = seen[first / group];
                let of_chunk = chunk.bits(seen);
                if of_chunk == 0 {
                    continue;
                }
                let is_first = seen.trailing_zeros() as usize >= chunk.first;
                let first = head * of_head + first;
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
                // SAFETY: the rows are those of the chunk; weights, factors and sums lie within the slices as just asserted.
                unsafe { tiles[n - 1](&args) }
            }
        }
    }
}

/// Cuts a range into parts of at most `most`, as equal as possible: first index and length of each.
fn split(range: Range<usize>, most: usize) -> impl Iterator<Item = (usize, usize)> {
    let n_parts = range.len().div_ceil(most);
    let mut at = range.start;
    (0..n_parts).map(move |part| {
        let n = (range.end - at).div_ceil(n_parts - part);
        at += n;
        (at - n, n)
    })
}

/// Parts of the queries of a head that see some of a chunk, as many to a token as `group`.
fn query_tiles(seen: &[u64], group: usize, chunk: &Chunk) -> impl Iterator<Item = QueryTile> {
    let parts = alike(seen, group).flat_map(|queries| split(queries, SUMS));
    let seeing = parts.map(move |(first, n)| QueryTile {
        first,
        n,
        seen: chunk.bits(seen[first / group]),
    });
    seeing.filter(|part| part.seen != 0)
}

/// Writes parts of the queries of a head, of which there are no more than queries.
fn put_parts(parts: impl Iterator<Item = QueryTile>, to: &mut [QueryTile; FEW_QUERIES]) -> &[QueryTile] {
    let n = parts.zip(&mut *to).fold(0, |n, (part, to)| {
        *to = part;
        n + 1
    });
    &to[..n]
}

/// Queries of each of `n_tokens` tokens.
fn group(n_queries: usize, n_tokens: usize) -> usize {
    assert!(
        n_tokens > 0 && n_queries.is_multiple_of(n_tokens),
        "{n_queries} queries of {n_tokens} tokens"
    );
    n_queries / n_tokens
}

/// The queries of neighbouring tokens that have seen the same.
fn alike(seen: &[u64], group: usize) -> impl Iterator<Item = Range<usize>> + '_ {
    let mut end = 0;
    seen.chunk_by(|a, b| a == b).map(move |same| {
        end += same.len() * group;
        end - same.len() * group..end
    })
}

/// Neighbouring rows.
struct Chunk {
    first: usize,
    n: usize,
}

impl Chunk {
    /// The part of it with the rows whose bits are set; it begins at a multiple of [`KEYS_OF_TILE`].
    fn with(&self, wanted: u64) -> Option<Chunk> {
        let bits = self.bits(wanted);
        let skipped = bits.trailing_zeros() as usize / KEYS_OF_TILE * KEYS_OF_TILE;
        (bits != 0).then(|| Chunk {
            first: self.first + skipped,
            n: bits.ilog2() as usize + 1 - skipped,
        })
    }

    /// Those of the page's bits that stand for these rows.
    fn bits(&self, page: u64) -> u64 {
        let all = if self.n < KEYS { (1 << self.n) - 1 } else { u64::MAX };
        page >> self.first & all
    }
}

/// Rows of a head that can be read as they are, or were converted.
struct Readable {
    start: *const u8,
    stride: usize,
}

impl CacheRows<'_> {
    /// Checks the sizes; the number of queries of all heads, given that as many floats are as many rows of this length.
    fn check(&self, kernels: &'static Kernels, floats: usize, scratch: usize) -> usize {
        let row_bytes = self.ty.row_bytes(self.d);
        let row_bytes = row_bytes.unwrap_or_else(|| panic!("{}: {} elements are not whole blocks", self.ty, self.d));
        kernels.of_type(self.ty);
        assert!(self.n <= KEYS, "{} rows of a page", self.n);
        let last_row = self.n.saturating_sub(1).checked_mul(self.stride);
        let last_head = self.heads.saturating_sub(1).checked_mul(self.head_stride);
        let end = last_row
            .zip(last_head)
            .and_then(|(row, head)| row.checked_add(head)?.checked_add(row_bytes));
        assert!(
            self.n == 0 || end.is_some_and(|end| end <= self.bytes.len()),
            "{} bytes for {} rows of {} heads",
            self.bytes.len(),
            self.n,
            self.heads
        );
        assert!(
            self.d > 0 && floats.is_multiple_of(self.d),
            "{floats} floats are not rows of {}",
            self.d
        );
        let n_queries = floats / self.d;
        assert!(
            self.heads > 0 && n_queries.is_multiple_of(self.heads),
            "{n_queries} queries of {} heads",
            self.heads
        );
        let needed = self::scratch(self.d);
        assert!(needed <= scratch, "scratch memory of {scratch} floats, {needed} needed");
        n_queries
    }

    /// Chunks with the rows whose bits are set, without those at the ends that are not.
    fn chunks(&self, wanted: u64) -> impl Iterator<Item = Chunk> + use<> {
        let size = if self.ty == GgmlType::F32 {
            IN_PLACE
        } else {
            chunk(self.d)
        };
        let wanted = wanted & Chunk { first: 0, n: self.n }.bits(u64::MAX);
        (0..self.n)
            .step_by(size)
            .filter_map(move |first| Chunk { first, n: size }.with(wanted))
    }

    /// From the first row whose bit is set to the last.
    fn range(&self, wanted: u64) -> Option<Chunk> {
        Chunk { first: 0, n: self.n }.with(wanted)
    }

    /// Fetches as many of a head's rows that are read next.
    fn prefetch_next(&self, chunk: &Chunk, head: usize) {
        let row_bytes = self.d / self.ty.block_size() * self.ty.block_bytes();
        let next = self.next.get(head * self.head_stride..).unwrap_or_default();
        for row in next.chunks(self.stride.max(1)).skip(chunk.first).take(chunk.n) {
            row[..row_bytes.min(row.len())]
                .chunks(CACHE_LINE)
                .for_each(|line| prefetch(line.as_ptr(), CacheLevel::First));
        }
    }

    /// Fetches the first rows, which nothing else fetches ahead of their use. Those behind them are fetched while these are read.
    pub fn prefetch_first(&self) {
        let row_bytes = self.d / self.ty.block_size() * self.ty.block_bytes();
        for row in 0..self.rows_ahead().min(self.n) {
            for head in 0..self.heads {
                let start = self
                    .bytes
                    .as_ptr()
                    .wrapping_add(row * self.stride + head * self.head_stride);
                for at in (0..row_bytes).step_by(CACHE_LINE) {
                    prefetch(start.wrapping_add(at), CacheLevel::First);
                }
            }
        }
    }

    /// How many rows ahead of their use they are fetched for few queries.
    fn rows_ahead(&self) -> usize {
        (AHEAD / self.stride.max(1)).clamp(ROWS_OF_TILE, KEYS)
    }

    /// Fetches the rows that are read next.
    fn prefetch_all(&self) {
        self.prefetch_next(&Chunk { first: 0, n: self.n }, 0);
    }

    /// True if rows of all heads are read in the order in which they lie, as they are.
    fn by_rows(&self, n_queries: usize) -> bool {
        n_queries <= FEW_QUERIES && matches!(self.ty, GgmlType::F32 | GgmlType::F16 | GgmlType::BF16)
    }

    /// The kernels for rows of floats that are read as they are.
    fn read_in_place(&self, kernels: &'static Kernels) -> &'static ByRows {
        match self.ty {
            GgmlType::F16 => &kernels.attention.f16,
            GgmlType::BF16 => &kernels.attention.bf16,
            _ => &kernels.attention.f32,
        }
    }

    /// The heads, for rows from the start of a chunk on.
    fn side_by_side(&self, chunk: &Chunk, n_queries: usize) -> Heads {
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

    /// Makes the rows of a chunk and a head readable: those of F32 are as they are, others are converted.
    ///
    /// # Safety
    /// The CPU has the kernels' instructions; the sizes were [checked](CacheRows::check), the chunk is one of the [chunks](CacheRows::chunks) and the head one of
    /// the heads.
    unsafe fn read(&self, kernels: &'static Kernels, chunk: &Chunk, head: usize, scratch: &mut [f32]) -> Readable {
        let start = self.bytes[chunk.first * self.stride + head * self.head_stride..].as_ptr();
        self.prefetch_next(chunk, head);
        if self.ty == GgmlType::F32 {
            return Readable {
                start,
                stride: self.stride,
            };
        }
        let dequantize = kernels.of_type(self.ty).dequantize;
        for (i, row) in scratch.chunks_exact_mut(self.d).enumerate().take(chunk.n) {
            // SAFETY: the caller's promise: the row's bytes lie within the slice.
            unsafe { dequantize(start.add(i * self.stride), row.as_mut_ptr(), self.d) }
        }
        Readable {
            start: scratch.as_ptr().cast(),
            stride: self.d * size_of::<f32>(),
        }
    }
}
