//! Attention of some queries to a page of the KV cache in f32, with an online softmax.
//!
//! The softmax over all cells needs their maximum, which is known only at the end. An online softmax keeps a
//! running maximum instead. When a page raises the maximum, the sums of earlier pages are scaled down to match:
//!
//! ```text
//! state of a query:   m = maximum score,  sum = sum of exp(s - m),  o[d] = sum of exp(s - m) * v
//!
//! for page in pages:
//!     s[i]   = q . k[i]                                  # scores:  N queries x 4 keys in registers
//!     s[i]   = -inf for cells that the query cannot see
//!     m'     = max(m, max(s))                            # softmax_step
//!     factor = exp(m - m')
//!     p[i]   = exp(s[i] - m')
//!     sum    = sum * factor + sum(p)
//!     o      = o * factor + sum over i of p[i] * v[i]    # values:  N queries x C registers of columns
//! result = o / sum
//! ```
//!
//! A page has up to 64 cells ([`KEYS`]), whose keys and values are rows at a fixed distance. [`scores`] adds
//! along a row and [`values`] across rows, so they keep different sums in registers:
//!
//! ```text
//! scores                                           values
//!           key 0   key 1   key 2   key 3                    columns 0..L   columns L..2L
//! query 0 | sum     sum     sum     sum            query 0 | sum            sum              L lanes per
//! query 1 | sum     sum     sum     sum            query 1 | sum            sum              register
//! for L elements of d:                             for cell in page:
//!     sum += q[..L] * k[..L]                           sum += broadcast(p[cell]) * v[cell][..L]
//! ```
//!
//! # Limits
//!
//! - [`scores`] and [`values`] read f32 rows, other types are converted first. The conversion pays for itself
//!   with many queries per head; for few, [`decode_attention`](super::decode_attention) reads rows in place.
//! - Scores beyond the last key, up to a multiple of [`TILE_KEYS`], are copies of the scores of the last key.
//! - The order of additions over the elements of a row, and over rows, does not depend on the number of
//!   queries. A token hence gets the same bits in a prompt and in decode.

use super::functions::{ExpNonPositive, Function};
use crate::limits::KEYS;
use crate::simd::Simd;

/// A type of the KV cache whose rows kernels read without converting them to memory first.
pub(crate) trait Element {
    /// Whether elements are converted to f32, which takes registers.
    const CONVERTS: bool;

    /// Returns the size of a row of `d` elements in bytes.
    fn row_bytes(d: usize) -> usize;

    /// Loads `LANES` elements of a row starting at element `c`, a multiple of `LANES`.
    ///
    /// # Safety
    /// - The CPU supports `V`.
    /// - `row` is valid for reads of `c + LANES` elements.
    unsafe fn load<V: Simd>(row: *const u8, c: usize) -> V;

    /// Loads the last `n < LANES` elements of a row starting at element `c`. The other lanes are zero.
    ///
    /// # Safety
    /// - The CPU supports `V`.
    /// - `row` is valid for reads of `c + n` elements.
    unsafe fn load_last<V: Simd>(row: *const u8, c: usize, n: usize) -> V;
}

macro_rules! elements {
    ($( $name:ident, $bytes:literal bytes: $load:expr; )*) => { $(
        pub(crate) struct $name;

        impl Element for $name {
            const CONVERTS: bool = $bytes < size_of::<f32>();

            #[inline(always)]
            fn row_bytes(d: usize) -> usize {
                d * $bytes
            }

            #[inline(always)]
            unsafe fn load<V: Simd>(row: *const u8, c: usize) -> V {
                // SAFETY: `LANES` elements from `c` on are readable (function contract).
                unsafe { $load(row.add(c * $bytes)) }
            }

            #[inline(always)]
            unsafe fn load_last<V: Simd>(row: *const u8, c: usize, n: usize) -> V {
                let mut copy = [0u8; 64];
                // SAFETY: `n` elements from `c` on are readable (function contract), and a register of these
                // types has at most 64 bytes.
                unsafe {
                    row.add(c * $bytes).copy_to_nonoverlapping(copy.as_mut_ptr(), n * $bytes);
                    $load(copy.as_ptr())
                }
            }
        }
    )* };
}

elements! {
    Float, 4 bytes: |p: *const u8| V::load(p.cast());
    Half, 2 bytes: V::load_f16;
    Brain, 2 bytes: V::load_bf16;
}

/// Elements in blocks of [`Q8_0`](crate::GgmlType::Q8_0): an f16 scale and 32 signed bytes.
pub(crate) struct ScaledByte;

/// Elements and bytes of a block of [`ScaledByte`].
const BYTE_BLOCK: usize = 32;
const BYTE_BLOCK_SIZE: usize = 2 + BYTE_BLOCK;

impl Element for ScaledByte {
    const CONVERTS: bool = true;

    #[inline(always)]
    fn row_bytes(d: usize) -> usize {
        d / BYTE_BLOCK * BYTE_BLOCK_SIZE
    }

    #[inline(always)]
    unsafe fn load<V: Simd>(row: *const u8, c: usize) -> V {
        const { assert!(BYTE_BLOCK.is_multiple_of(V::LANES)) };
        // SAFETY: the block of element `c` is readable, because `LANES` elements from `c` on are
        // (function contract).
        unsafe {
            let block = row.add(c / BYTE_BLOCK * BYTE_BLOCK_SIZE);
            V::from_int(V::load_i8(block.add(2 + c % BYTE_BLOCK))).mul(V::splat_f16(block))
        }
    }

    unsafe fn load_last<V: Simd>(_: *const u8, _: usize, _: usize) -> V {
        unreachable!("rows have whole blocks, which are whole registers")
    }
}

/// Keys whose dot products with a query are computed together.
pub(crate) const TILE_KEYS: usize = 4;

/// A range of keys, with as many queries as the kernel is instantiated for.
#[derive(Clone, Copy)]
pub(crate) struct Scores {
    pub keys: *const u8,
    /// Distance between keys in bytes.
    pub stride: usize,
    /// Number of keys, at least 1.
    pub n: usize,
    /// Number of elements per key and per query.
    pub d: usize,
    /// Pointer to the contiguous queries.
    pub queries: *const f32,
    /// Scores, [`KEYS`] floats per query. The first `n`, rounded up to a multiple of [`TILE_KEYS`], are
    /// written.
    pub out: *mut f32,
}

/// Computes the scores of `N` queries with f32 keys.
///
/// # Safety
/// - The CPU supports `V`.
/// - The pointers in `s` are valid for the sizes given by its fields.
#[inline(always)]
pub(crate) unsafe fn scores<V: Simd, const N: usize>(s: &Scores) {
    for first in (0..s.n).step_by(TILE_KEYS) {
        // SAFETY: `first < s.n` (same contract as `tile_scores`).
        unsafe { tile_scores::<V, Float, N>(s, first) }
    }
}

/// Computes the scores of `N` queries with [`TILE_KEYS`] keys starting at key `first`.
///
/// # Safety
/// - The CPU supports `V`.
/// - The pointers in `s` are valid for the sizes given by its fields, and `first < s.n`.
#[inline(always)]
pub(crate) unsafe fn tile_scores<V: Simd, E: Element, const N: usize>(s: &Scores, first: usize) {
    // SAFETY: keys beyond the end are replaced by the last one, and `out` has `n` scores rounded up to a
    // multiple of `TILE_KEYS`.
    unsafe {
        let (start, last) = (s.keys.add(first * s.stride), s.n - first - 1);
        let keys: [*const u8; TILE_KEYS] = std::array::from_fn(|r| start.add(r.min(last) * s.stride));
        // As many sums at a time as fit the registers next to converted keys.
        let sums = if V::LANES == 16 || N <= 2 || (N == 3 && !E::CONVERTS) {
            products::<V, E, N, TILE_KEYS>(s, keys)
        } else {
            let [a, b, c, d] = keys;
            let (low, high) = (products::<V, E, N, 2>(s, [a, b]), products::<V, E, N, 2>(s, [c, d]));
            let mut sums = [[V::splat(0.0); TILE_KEYS]; N];
            for q in 0..N {
                sums[q] = [low[q][0], low[q][1], high[q][0], high[q][1]];
            }
            sums
        };
        for q in (0..N).step_by(2) {
            let second = (q + 1).min(N - 1);
            let totals = V::sum4_of_two([sums[q], sums[second]]);
            let out = |q: usize| s.out.add(q * KEYS + first).cast::<[f32; TILE_KEYS]>();
            out(q).write_unaligned(totals[0]);
            out(second).write_unaligned(totals[1]);
        }
    }
}

/// Returns the products of `N` queries with `K` keys, not yet added across lanes.
///
/// # Safety
/// - The CPU supports `V`.
/// - Each pointer in `keys` is valid for `s.d` elements, and `s.queries` for `N` queries.
#[inline(always)]
unsafe fn products<V: Simd, E: Element, const N: usize, const K: usize>(
    s: &Scores,
    keys: [*const u8; K],
) -> [[V; K]; N] {
    // SAFETY: reads end at `s.d` (function contract).
    unsafe {
        let mut sums = [[V::splat(0.0); K]; N];
        let mut c = 0;
        while c + V::LANES <= s.d {
            let mut queries = [V::splat(0.0); N];
            for (q, query) in queries.iter_mut().enumerate() {
                *query = V::load(s.queries.add(q * s.d + c));
            }
            for r in 0..K {
                let key: V = E::load(keys[r], c);
                for q in 0..N {
                    sums[q][r] = key.mul_add(queries[q], sums[q][r]);
                }
            }
            c += V::LANES;
        }
        if c < s.d {
            for r in 0..K {
                let key: V = E::load_last(keys[r], c, s.d - c);
                for q in 0..N {
                    let query = V::load_partial(s.queries.add(q * s.d + c), s.d - c);
                    sums[q][r] = key.mul_add(query, sums[q][r]);
                }
            }
        }
        sums
    }
}

/// Scores of some queries with one or more pages, and the softmax state of the queries.
pub(crate) struct Softmax {
    pub n_queries: usize,
    /// Queries per token, and the number of queries of the first token before these.
    pub group: usize,
    pub before: usize,
    pub n_pages: usize,
    /// Scores, [`KEYS`] floats per page and query.
    pub scores: *mut f32,
    /// Distance between the scores of two queries in floats.
    pub stride: usize,
    /// Bit mask of the visible cells, one word per page.
    pub seen: *const u64,
    /// Distance between the masks of two tokens in words.
    pub seen_stride: usize,
    /// Largest score of each query so far.
    pub max: *mut f32,
    /// Sum of `e^(score - max)` so far, per query.
    pub sum: *mut f32,
    /// Output: factor by which earlier sums of values must be multiplied.
    pub factors: *mut f32,
    /// Output: weights. Unused by implementations that overwrite the scores.
    pub weights: *mut u8,
    /// Distance between the weights of two queries in bytes.
    pub weight_stride: usize,
}

/// Destination and format of the weights.
pub(crate) trait StoreWeights<V: Simd> {
    /// Exponential function with the precision of the stored weights.
    type Exp: Function;

    /// Stores a register of weights. `score` points to the scores they were computed from, and `i` is the
    /// index of the first in the row of weights.
    ///
    /// # Safety
    /// - The CPU supports `V`.
    /// - `score` and `row` are valid for writes of a register of weights at their positions.
    unsafe fn store(weights: V, score: *mut f32, row: *mut u8, i: usize);
}

/// Stores weights over their scores.
pub(crate) struct InPlace;

impl<V: Simd> StoreWeights<V> for InPlace {
    type Exp = ExpNonPositive;

    #[inline(always)]
    unsafe fn store(weights: V, score: *mut f32, _: *mut u8, _: usize) {
        // SAFETY: `score` is valid for writes of a register (function contract).
        unsafe { weights.store(score) }
    }
}

/// Queries whose maximums and sums are reduced together.
const QUERY_BATCH: usize = 4;

/// Larger than every result of [`ExpNonPositive`] for arguments far below 0.
const NEGLIGIBLE: f32 = 1.2e-38;

/// Converts visible scores to weights `e^(score - max)`. Hidden cells get negligible weights. The maximums of
/// all queries are computed first, so that the exponentials do not wait for them.
///
/// # Safety
/// - The CPU supports `V`.
/// - The pointers in `s` are valid for the sizes given by its fields.
#[inline(always)]
pub(crate) unsafe fn softmax_step<V: Simd, P: StoreWeights<V>>(s: &Softmax) {
    for first in (0..s.n_queries).step_by(QUERY_BATCH) {
        // SAFETY: queries `first..first + n` are below `n_queries`.
        unsafe { update_maxima::<V>(s, first, QUERY_BATCH.min(s.n_queries - first)) }
    }
    for q in (0..s.n_queries).step_by(V::LANES) {
        // SAFETY: `factors` has `n_queries` floats.
        unsafe {
            let (factors, n) = (s.factors.add(q), s.n_queries - q);
            if n >= V::LANES {
                ExpNonPositive::apply(V::load(factors)).store(factors);
            } else {
                ExpNonPositive::apply(V::load_partial(factors, n)).store_partial(factors, n);
            }
        }
    }
    for first in (0..s.n_queries).step_by(QUERY_BATCH) {
        let n = QUERY_BATCH.min(s.n_queries - first);
        // SAFETY: queries `first..first + n` are below `n_queries`.
        unsafe {
            let mut sums = [V::splat(0.0); QUERY_BATCH];
            for i in 0..n {
                sums[i] = store_weights::<V, P>(s, first + i);
            }
            let sums = V::sum4(sums);
            for i in 0..n {
                add_to_sum(s, first + i, sums[i]);
            }
        }
    }
}

/// Updates the maximums of `n` queries starting at `first`. The factors of the queries become the old maximum minus the
/// new one.
///
/// # Safety
/// - The CPU supports `V`.
/// - The pointers in `s` are valid for the sizes given by its fields, and `first + n <= s.n_queries`.
#[inline(always)]
unsafe fn update_maxima<V: Simd>(s: &Softmax, first: usize, n: usize) {
    // SAFETY: `first + i < s.n_queries` (function contract).
    unsafe {
        let mut largest = [V::splat(f32::NEG_INFINITY); QUERY_BATCH];
        for i in 0..n {
            largest[i] = row_maxima::<V>(s, first + i);
        }
        let largest = V::largest4(largest);
        for i in 0..n {
            update_max(s, first + i, largest[i]);
        }
    }
}

/// Updates the maximum of query `q` with `score`. The query's factor becomes the old maximum minus the new
/// one.
///
/// # Safety
/// The pointers in `s` are valid for the sizes given by its fields, and `q < s.n_queries`.
#[inline(always)]
pub(super) unsafe fn update_max(s: &Softmax, q: usize, score: f32) {
    // SAFETY: `max` and `factors` have `n_queries` floats (function contract).
    unsafe {
        let before = *s.max.add(q);
        let max = score.max(before);
        *s.max.add(q) = max;
        // Without a visible cell so far, both maximums are minus infinity.
        *s.factors.add(q) = if max == before { 0.0 } else { before - max };
    }
}

/// Adds weights to the sum of query `q`.
///
/// # Safety
/// The pointers in `s` are valid for the sizes given by its fields, and `q < s.n_queries`.
#[inline(always)]
pub(super) unsafe fn add_to_sum(s: &Softmax, q: usize, weights: f32) {
    // SAFETY: `sum` and `factors` have `n_queries` floats (function contract).
    unsafe {
        let (sum, factor) = (s.sum.add(q), s.factors.add(q));
        // A tiny factor would leave a residue of very large values.
        *factor = if *factor < NEGLIGIBLE { 0.0 } else { *factor };
        *sum = *sum * *factor + weights;
    }
}

/// Returns the largest visible scores of query `q` per lane, and sets hidden scores to minus infinity.
///
/// # Safety
/// - The CPU supports `V`.
/// - The pointers in `s` are valid for the sizes given by its fields, and `q < s.n_queries`.
#[inline(always)]
unsafe fn row_maxima<V: Simd>(s: &Softmax, q: usize) -> V {
    // SAFETY: `page < s.n_pages` and `q < s.n_queries` (function contract).
    unsafe {
        let mut larger = V::splat(f32::NEG_INFINITY);
        for page in 0..s.n_pages {
            larger = page_maxima(s, q, page, larger);
        }
        larger
    }
}

/// Returns the maximum of `larger` and the visible scores of one page per lane, and sets hidden scores to
/// minus infinity.
///
/// # Safety
/// - The CPU supports `V`.
/// - The pointers in `s` are valid for the sizes given by its fields, `q < s.n_queries`, and `page <
///   s.n_pages`.
#[inline(always)]
pub(super) unsafe fn page_maxima<V: Simd>(s: &Softmax, q: usize, page: usize, mut larger: V) -> V {
    // SAFETY: `at` is below `KEYS`, a multiple of `LANES`, and the query's token has a mask for each page
    // (function contract).
    unsafe {
        let hidden = V::splat(f32::NEG_INFINITY);
        let scores = s.scores.add(q * s.stride + page * KEYS);
        let seen = *s.seen.add((s.before + q) / s.group * s.seen_stride + page);
        for at in (0..KEYS).step_by(V::LANES) {
            let mut x = V::load(scores.add(at));
            if seen != u64::MAX {
                x = V::select(V::mask((seen >> at) as u32, 0), x, hidden);
                x.store(scores.add(at));
            }
            larger = x.max(larger);
        }
        larger
    }
}

/// Converts the scores of query `q` to weights and returns their sums per lane.
///
/// # Safety
/// - The CPU supports `V`.
/// - The pointers in `s` are valid for the sizes given by its fields, and `q < s.n_queries`.
#[inline(always)]
unsafe fn store_weights<V: Simd, P: StoreWeights<V>>(s: &Softmax, q: usize) -> V {
    // SAFETY: `at` is below the number of scores, a multiple of `LANES` (function contract).
    unsafe {
        let (scores, row) = (s.scores.add(q * s.stride), s.weights.wrapping_add(q * s.weight_stride));
        let max = *s.max.add(q);
        let sees_nothing = max == f32::NEG_INFINITY;
        let (none, max) = (V::splat(0.0), V::splat(max));
        let mut sum = none;
        for at in (0..s.n_pages * KEYS).step_by(V::LANES) {
            let score = scores.add(at);
            let weight = if sees_nothing {
                none
            } else {
                P::Exp::apply(V::load(score).sub(max))
            };
            P::store(weight, score, row, at);
            sum = sum.add(weight);
        }
        sum
    }
}

/// A range of values, with the weights of as many queries as the kernel is instantiated for.
#[derive(Clone, Copy)]
pub(crate) struct Values {
    pub values: *const u8,
    /// Distance between values in bytes.
    pub stride: usize,
    /// Bit mask of the rows to add; other rows are not read.
    pub seen: u64,
    /// Number of elements per value.
    pub d: usize,
    /// Softmax weights, [`KEYS`] floats per query.
    pub weights: *const f32,
    /// Factor for the earlier sums of each query; null for 1.
    pub factors: *const f32,
    /// Sums of the queries, stored contiguously.
    pub out: *mut f32,
}

/// Adds weighted rows to the sums of `N` queries: `out[q] = factor[q] * out[q] + sum_i weight[q][i] *
/// values[i]`.
///
/// # Safety
/// - The CPU supports `V`.
/// - The pointers in `v` are valid for the sizes given by its fields.
#[inline(always)]
pub(crate) unsafe fn values<V: Simd, E: Element, const N: usize>(v: &Values) {
    let mut at = 0;
    // SAFETY: columns end at `v.d` (same contract as the callees).
    unsafe {
        // As many sums as hide the latency of additions and fit the registers.
        match N {
            1 => at = whole_columns::<V, E, N, 8>(v, at),
            2 | 3 => at = whole_columns::<V, E, N, 4>(v, at),
            _ if V::LANES == 16 => at = whole_columns::<V, E, N, 4>(v, at),
            _ => {}
        }
        at = whole_columns::<V, E, N, 2>(v, at);
        at = whole_columns::<V, E, N, 1>(v, at);
        if at < v.d {
            last_columns::<V, E, N>(v, at);
        }
    }
}

/// Iterates over the set bits in ascending order.
macro_rules! for_each_row {
    ($seen:expr, |$i:ident| $body:block) => {
        let mut rest: u64 = $seen;
        while rest != 0 {
            let start = rest.trailing_zeros();
            let end = start + (rest >> start).trailing_ones();
            for $i in start as usize..end as usize $body
            rest = if end < u64::BITS { rest >> end << end } else { 0 };
        }
    };
}

/// Adds `C` registers of columns at a time starting at column `at`, and returns the first column that is left.
///
/// # Safety
/// - The CPU supports `V`.
/// - The pointers in `v` are valid for the sizes given by its fields.
#[inline(always)]
unsafe fn whole_columns<V: Simd, E: Element, const N: usize, const C: usize>(v: &Values, mut at: usize) -> usize {
    while at + C * V::LANES <= v.d {
        // SAFETY: columns `at..at + C * LANES` are below `v.d`, and rows are those with set bits (function
        // contract).
        unsafe {
            let mut sums = [[V::splat(0.0); C]; N];
            for (q, sums) in sums.iter_mut().enumerate() {
                let factor = V::splat(v.factor(q));
                for (c, sum) in sums.iter_mut().enumerate() {
                    *sum = V::load(v.out.add(q * v.d + at + c * V::LANES)).mul(factor);
                }
            }
            for_each_row!(v.seen, |i| {
                let row = v.values.add(i * v.stride);
                // Load the smaller operand into registers first.
                if N < C {
                    let mut weights = [V::splat(0.0); N];
                    for q in 0..N {
                        weights[q] = V::splat(*v.weights.add(q * KEYS + i));
                    }
                    for c in 0..C {
                        let value: V = E::load(row, at + c * V::LANES);
                        for q in 0..N {
                            sums[q][c] = value.mul_add(weights[q], sums[q][c]);
                        }
                    }
                } else {
                    let mut values = [V::splat(0.0); C];
                    for c in 0..C {
                        values[c] = E::load(row, at + c * V::LANES);
                    }
                    for q in 0..N {
                        let weight = V::splat(*v.weights.add(q * KEYS + i));
                        for c in 0..C {
                            sums[q][c] = values[c].mul_add(weight, sums[q][c]);
                        }
                    }
                }
            });
            for (q, sums) in sums.into_iter().enumerate() {
                for (c, sum) in sums.into_iter().enumerate() {
                    sum.store(v.out.add(q * v.d + at + c * V::LANES));
                }
            }
        }
        at += C * V::LANES;
    }
    at
}

/// Adds the columns starting at `at`, which are fewer than a register has lanes.
///
/// # Safety
/// - The CPU supports `V`.
/// - The pointers in `v` are valid for the sizes given by its fields, and `v.d - at < LANES`.
#[inline(always)]
unsafe fn last_columns<V: Simd, E: Element, const N: usize>(v: &Values, at: usize) {
    let n = v.d - at;
    for q in 0..N {
        // SAFETY: `n` columns from `at` on are below `v.d`, and rows are those with set bits (function
        // contract).
        unsafe {
            let out = v.out.add(q * v.d + at);
            let mut sum = V::load_partial(out, n).mul(V::splat(v.factor(q)));
            for_each_row!(v.seen, |i| {
                let values: V = E::load_last(v.values.add(i * v.stride), at, n);
                sum = values.mul_add(V::splat(*v.weights.add(q * KEYS + i)), sum);
            });
            sum.store_partial(out, n);
        }
    }
}

impl Values {
    /// Returns the factor of query `q`.
    ///
    /// # Safety
    /// `factors` is null or valid for reads of more than `q` floats.
    #[inline(always)]
    pub(super) unsafe fn factor(&self, q: usize) -> f32 {
        if self.factors.is_null() {
            return 1.0;
        }
        // SAFETY: `factors` has more than `q` floats (function contract).
        unsafe { *self.factors.add(q) }
    }
}
