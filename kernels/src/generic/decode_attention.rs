//! Attention of a few queries per head, as in decode, which is bound by reading keys and values.
//!
//! Rows are read in memory order, four rows of all heads at a time, and prefetched a fixed number of rows
//! ahead. Scores and sums have the same bits as in [`attention`](super::attention).
//!
//! ```text
//! memory order of a page           loop
//! row 0 | head 0 | head 1 | ..     for 4 rows:
//! row 1 | head 0 | head 1 | ..         for head:
//!   ..                                     prefetch the same head's rows some distance ahead
//!                                          for tile of queries of the head:
//!                                              scores += q . k    or    o += p * v
//! ```

use super::attention::{Element, Scores, TILE_KEYS, Values, tile_scores};
use crate::limits::KEYS;
use crate::prefetch::{CACHE_LINE, CacheLevel, prefetch};
use crate::simd::Simd;

/// Rows of keys or values processed together.
pub(crate) const TILE_ROWS: usize = TILE_KEYS;

/// Maximum queries per head that share the loads of keys.
pub(crate) const SCORES: usize = 3;

/// Maximum queries per head that share the loads of values.
pub(crate) const SUMS: usize = 4;

/// Heads whose rows are adjacent in memory.
#[derive(Clone, Copy)]
pub(crate) struct Heads {
    pub n: usize,
    /// Distance between the rows of adjacent heads in bytes.
    pub stride: usize,
    /// Number of queries per head.
    pub n_queries: usize,
    /// Rows from the first processed row to the end of the page.
    pub rows: usize,
    /// Start of the rows read next, with the same strides; null if there are none.
    pub next: *const u8,
    /// Prefetch distance in rows of keys or values.
    pub ahead: usize,
}

impl Heads {
    /// Prefetches one tile of rows of a head, [`ahead`](Heads::ahead) rows after row `first`. Rows have
    /// `bytes` bytes and are `stride` bytes apart.
    #[inline(always)]
    fn fetch_ahead(&self, rows: *const u8, head: usize, stride: usize, bytes: usize, first: usize) {
        let first = first + self.ahead;
        let (start, first) = if first < self.rows {
            (rows, first)
        } else if self.next.is_null() {
            return;
        } else {
            (self.next, first - self.rows)
        };
        let start = start.wrapping_add(first * stride + head * self.stride);
        for row in 0..TILE_ROWS {
            let row = start.wrapping_add(row * stride);
            for at in (0..bytes).step_by(CACHE_LINE) {
                prefetch(row.wrapping_add(at), CacheLevel::First);
            }
        }
    }
}

/// Adjacent queries of a head that see the same rows.
#[derive(Clone, Copy, Default)]
pub(crate) struct QueryTile {
    pub first: usize,
    pub n: usize,
    /// Bit mask of the visible rows.
    pub seen: u64,
}

/// Computes the scores of all heads. `s` describes the first head as for
/// [`scores`](super::attention::scores); queries and scores of the other heads follow. Each tile has at most
/// [`SCORES`] queries.
///
/// # Safety
/// - The CPU supports `V`.
/// - The pointers in `s` are valid for the sizes given by its fields, for all heads and for the queries of
///   all tiles.
#[inline(always)]
pub(crate) unsafe fn scores_by_rows<V: Simd, E: Element>(s: &Scores, heads: &Heads, queries: &[QueryTile]) {
    for first in (0..s.n).step_by(TILE_KEYS) {
        for head in 0..heads.n {
            heads.fetch_ahead(s.keys, head, s.stride, s.d * E::BYTES, first);
            for queries in queries {
                let query = head * heads.n_queries + queries.first;
                // SAFETY: `head < heads.n` and the tile's queries belong to the head, so all pointers stay
                // within their arrays (function contract).
                unsafe {
                    let part = Scores {
                        keys: s.keys.add(head * heads.stride),
                        queries: s.queries.add(query * s.d),
                        out: s.out.add(query * KEYS),
                        ..*s
                    };
                    match queries.n {
                        1 => tile_scores::<V, E, 1>(&part, first),
                        2 => tile_scores::<V, E, 2>(&part, first),
                        _ => tile_scores::<V, E, SCORES>(&part, first),
                    }
                }
            }
        }
    }
}

/// Adds weighted rows to the sums of all heads. `v` describes the first head as for
/// [`values`](super::attention::values), except that `seen` is given by the tiles; weights, factors, and sums
/// of the other heads follow. Each tile has at most [`SUMS`] queries.
///
/// # Safety
/// - The CPU supports `V`.
/// - The pointers in `v` are valid for the sizes given by its fields, for all heads and for the queries of
///   all tiles.
#[inline(always)]
pub(crate) unsafe fn values_by_rows<V: Simd, E: Element>(v: &Values, heads: &Heads, queries: &[QueryTile]) {
    let parts = || (0..heads.n).flat_map(|head| queries.iter().map(move |queries| (head, queries)));
    // SAFETY: `head < heads.n`, the tile's queries belong to the head, and only rows with set bits are read
    // (function contract).
    unsafe {
        for (head, queries) in parts() {
            let first = head * heads.n_queries + queries.first;
            for query in first..first + queries.n {
                scale_sums::<V>(v, query);
            }
        }
        for first in (0..KEYS).step_by(TILE_ROWS).take_while(|first| v.seen >> first != 0) {
            for head in 0..heads.n {
                heads.fetch_ahead(v.values, head, v.stride, v.d * E::BYTES, first);
                for queries in queries {
                    let query = head * heads.n_queries + queries.first;
                    let part = Values {
                        values: v.values.add(head * heads.stride),
                        weights: v.weights.add(query * KEYS),
                        out: v.out.add(query * v.d),
                        seen: queries.seen,
                        ..*v
                    };
                    match queries.n {
                        1 => add_tile::<V, E, 1>(&part, first),
                        2 => add_tile::<V, E, 2>(&part, first),
                        3 => add_tile::<V, E, 3>(&part, first),
                        _ => add_tile::<V, E, SUMS>(&part, first),
                    }
                }
            }
        }
    }
}

/// Multiplies the sums of a query by its factor.
///
/// # Safety
/// - The CPU supports `V`.
/// - `v.out` is valid for the query's sums, and `v.factors` for its factor.
#[inline(always)]
unsafe fn scale_sums<V: Simd>(v: &Values, query: usize) {
    // SAFETY: columns end at `v.d` (function contract).
    unsafe {
        let factor = v.factor(query);
        if factor == 1.0 {
            return;
        }
        let (factor, sums) = (V::splat(factor), v.out.add(query * v.d));
        let mut at = 0;
        while at + V::LANES <= v.d {
            V::load(sums.add(at)).mul(factor).store(sums.add(at));
            at += V::LANES;
        }
        if at < v.d {
            let n = v.d - at;
            V::load_partial(sums.add(at), n)
                .mul(factor)
                .store_partial(sums.add(at), n);
        }
    }
}

/// Adds the visible rows among [`TILE_ROWS`] rows from row `first` on to the sums of `N` queries.
///
/// # Safety
/// - The CPU supports `V`.
/// - `v` describes `N` queries, and rows with set bits in `v.seen` are valid for reads.
#[inline(always)]
unsafe fn add_tile<V: Simd, E: Element, const N: usize>(v: &Values, first: usize) {
    // SAFETY: only rows with set bits are read (function contract).
    unsafe {
        match v.seen >> first & ((1 << TILE_ROWS) - 1) {
            0 => {}
            0b1111 => add_rows::<V, E, N, TILE_ROWS>(v, first),
            some => {
                for row in (0..TILE_ROWS).filter(|row| some >> row & 1 == 1) {
                    add_rows::<V, E, N, 1>(v, first + row);
                }
            }
        }
    }
}

/// Adds `R` rows from row `first` on to the sums of `N` queries, which stay in the L1 cache.
///
/// # Safety
/// - The CPU supports `V`.
/// - `v` describes `N` queries, and rows `first..first + R` are valid for reads.
#[inline(always)]
unsafe fn add_rows<V: Simd, E: Element, const N: usize, const R: usize>(v: &Values, first: usize) {
    // SAFETY: columns end at `v.d`, and `R` rows are readable (function contract).
    unsafe {
        let mut weights = [[V::splat(0.0); R]; N];
        for (q, weights) in weights.iter_mut().enumerate() {
            for (r, weight) in weights.iter_mut().enumerate() {
                *weight = V::splat(*v.weights.add(q * KEYS + first + r));
            }
        }
        let rows = v.values.add(first * v.stride);
        let mut at = 0;
        while at + V::LANES <= v.d {
            let mut values = [V::splat(0.0); R];
            for (r, value) in values.iter_mut().enumerate() {
                *value = E::load(rows.add(r * v.stride + at * E::BYTES));
            }
            for (q, weights) in weights.iter().enumerate() {
                let to = v.out.add(q * v.d + at);
                let mut sum = V::load(to);
                for r in 0..R {
                    sum = values[r].mul_add(weights[r], sum);
                }
                sum.store(to);
            }
            at += V::LANES;
        }
        if at < v.d {
            let n = v.d - at;
            for r in 0..R {
                let value: V = E::load_partial(rows.add(r * v.stride + at * E::BYTES), n);
                for (q, weights) in weights.iter().enumerate() {
                    let to = v.out.add(q * v.d + at);
                    value.mul_add(weights[r], V::load_partial(to, n)).store_partial(to, n);
                }
            }
        }
    }
}
