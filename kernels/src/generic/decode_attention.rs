//! Attention of few queries of each head, as in decode: what takes time is reading keys and values. They are read in the order in which they lie, some rows
//! of all heads at a time, and fetched ahead. Scores and sums have the bits of [`attention`](super::attention).

use super::attention::{Element, KEYS_OF_TILE, Scores, Values, scores_of_tile};
use crate::attention::KEYS;
use crate::prefetch::{CACHE_LINE, CacheLevel, prefetch};
use crate::simd::Simd;

/// Rows of values that are added to sums at a time, or of keys that are multiplied.
pub(crate) const ROWS_OF_TILE: usize = KEYS_OF_TILE;

/// Most queries of a head that are computed with rows of keys at a time.
pub(crate) const SCORES: usize = 3;

/// Most queries of a head that are computed with rows of values at a time.
pub(crate) const SUMS: usize = 4;

/// Heads whose rows lie side by side.
#[derive(Clone, Copy)]
pub(crate) struct Heads {
    pub n: usize,
    /// Bytes from a row of one head to that of the next.
    pub stride: usize,
    /// Queries of a head.
    pub n_queries: usize,
    /// Rows from the first one of these to the page's end.
    pub rows: usize,
    /// The rows that are read after those, as far apart; null if there are none.
    pub next: *const u8,
    /// How many rows ahead of their use they are fetched.
    pub ahead: usize,
}

impl Heads {
    /// Fetches rows of one head: as many as a tile has, some time after the tile at row `first` of `rows`. Rows have `bytes` and are `stride` apart.
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
        for row in 0..ROWS_OF_TILE {
            let row = start.wrapping_add(row * stride);
            for at in (0..bytes).step_by(CACHE_LINE) {
                prefetch(row.wrapping_add(at), CacheLevel::First);
            }
        }
    }
}

/// Neighbouring queries of a head that are computed at a time: they see the same rows.
#[derive(Clone, Copy, Default)]
pub(crate) struct QueryTile {
    pub first: usize,
    pub n: usize,
    /// The rows that they see, by bits.
    pub seen: u64,
}

/// Products of the queries of some heads with keys: `s` is what [`scores`](super::attention::scores) takes for the first head, and queries and products of the others
/// follow. `queries` are parts of at most [`SCORES`].
///
/// # Safety
/// The CPU has `V`'s instructions, and the pointers are valid for what the fields say.
#[inline(always)]
pub(crate) unsafe fn scores_by_rows<V: Simd, E: Element>(s: &Scores, heads: &Heads, queries: &[QueryTile]) {
    for first in (0..s.n).step_by(KEYS_OF_TILE) {
        for head in 0..heads.n {
            heads.fetch_ahead(s.keys, head, s.stride, s.d * E::BYTES, first);
            for queries in queries {
                let query = head * heads.n_queries + queries.first;
                // SAFETY: the caller's promise; heads and queries are among those that there are.
                unsafe {
                    let part = Scores {
                        keys: s.keys.add(head * heads.stride),
                        queries: s.queries.add(query * s.d),
                        out: s.out.add(query * KEYS),
                        ..*s
                    };
                    match queries.n {
                        1 => scores_of_tile::<V, E, 1>(&part, first),
                        2 => scores_of_tile::<V, E, 2>(&part, first),
                        _ => scores_of_tile::<V, E, SCORES>(&part, first),
                    }
                }
            }
        }
    }
}

/// Adds weighted rows to the sums of queries of some heads, parts of at most [`SUMS`]: `v` is what [`values`](super::attention::values) takes for the first head, but for what is seen, and weights, factors and
/// sums of the others follow.
///
/// # Safety
/// The CPU has `V`'s instructions, and the pointers are valid for what the fields say.
#[inline(always)]
pub(crate) unsafe fn values_by_rows<V: Simd, E: Element>(v: &Values, heads: &Heads, queries: &[QueryTile]) {
    let parts = || (0..heads.n).flat_map(|head| queries.iter().map(move |queries| (head, queries)));
    // SAFETY: the caller's promise; heads, queries and rows are among those that there are.
    unsafe {
        for (head, queries) in parts() {
            let first = head * heads.n_queries + queries.first;
            for query in first..first + queries.n {
                scale_sums::<V>(v, query);
            }
        }
        for first in (0..KEYS).step_by(ROWS_OF_TILE).take_while(|first| v.seen >> first != 0) {
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

/// Multiplies the sums of a query with its factor.
///
/// # Safety
/// As for [`values_by_rows`].
#[inline(always)]
unsafe fn scale_sums<V: Simd>(v: &Values, query: usize) {
    // SAFETY: the caller's promise; columns lie below `d`.
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

/// Adds those of [`ROWS_OF_TILE`] rows from row `first` on that are seen to the sums of `N` queries.
///
/// # Safety
/// As for [`values_by_rows`].
#[inline(always)]
unsafe fn add_tile<V: Simd, E: Element, const N: usize>(v: &Values, first: usize) {
    // SAFETY: the caller's promise; rows whose bits are set are there.
    unsafe {
        match v.seen >> first & ((1 << ROWS_OF_TILE) - 1) {
            0 => {}
            0b1111 => add_rows::<V, E, N, ROWS_OF_TILE>(v, first),
            some => {
                for row in (0..ROWS_OF_TILE).filter(|row| some >> row & 1 == 1) {
                    add_rows::<V, E, N, 1>(v, first + row);
                }
            }
        }
    }
}

/// Adds `R` rows from row `first` on to the sums of `N` queries, which stay in the first-level cache.
///
/// # Safety
/// As for [`values_by_rows`].
#[inline(always)]
unsafe fn add_rows<V: Simd, E: Element, const N: usize, const R: usize>(v: &Values, first: usize) {
    // SAFETY: the caller's promise; columns lie below `d`.
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
