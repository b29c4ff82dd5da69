//! Attention of a few queries per head, as in decode, which is bound by reading keys and values.
//!
//! Rows are read nearly in memory order, a few rows of all heads at a time, and prefetched a fixed number of
//! rows ahead. Scores and sums have the same bits as in [`attention`](super::attention).
//!
//! ```text
//! memory order of a page           loop
//! row 0 | head 0 | head 1 | ..     for 4 rows of keys, or 16 rows of values:
//! row 1 | head 0 | head 1 | ..         for head:
//!   ..                                     prefetch the same head's rows some distance ahead
//!                                          for tile of queries of the head:
//!                                              scores += q . k    or    o += p * v
//! ```

use super::attention::{Element, Scores, TILE_KEYS, Values, tile_scores, values};
use crate::limits::KEYS;
use crate::prefetch::{CACHE_LINE, CacheLevel, prefetch};
use crate::simd::Simd;

/// Rows of keys processed together.
const TILE_ROWS: usize = TILE_KEYS;

/// Rows of values whose weighted sum stays in registers. Loading and storing the sums of earlier rows then takes
/// a tenth of the time, and rows are still read nearly in memory order.
pub(crate) const VALUE_ROWS: usize = 16;

/// Maximum queries per head that share the loads of keys.
pub(crate) const SCORES: usize = 4;

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
    /// Prefetches a head's share of `n` rows of all heads, [`ahead`](Heads::ahead) rows after row `first`. Rows
    /// of a head have `bytes` bytes and are `stride` bytes apart.
    #[inline(always)]
    fn fetch_ahead(&self, rows: *const u8, head: usize, stride: usize, bytes: usize, first: usize, n: usize) {
        let first = first + self.ahead;
        let (start, first) = if first < self.rows {
            (rows, first)
        } else if self.next.is_null() {
            return;
        } else {
            (self.next, first - self.rows)
        };
        let start = start.wrapping_add(first * stride);
        if self.n * self.stride == stride {
            // The rows of all heads are contiguous. Each head prefetches an equal share of them, in memory order.
            let bytes = n * self.stride;
            return fetch(start.wrapping_add(head * bytes), bytes);
        }
        for row in 0..n {
            fetch(start.wrapping_add(row * stride + head * self.stride), bytes);
        }
    }
}

/// Prefetches the cache lines of some bytes into the L2 cache. The L2 cache supports more outstanding requests than the
/// L1 cache, which matters at high memory latency.
#[inline(always)]
fn fetch(start: *const u8, bytes: usize) {
    for at in (0..bytes).step_by(CACHE_LINE) {
        prefetch(start.wrapping_add(at), CacheLevel::Second);
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
            heads.fetch_ahead(s.keys, head, s.stride, E::row_bytes(s.d), first, TILE_ROWS);
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
                        3 => tile_scores::<V, E, 3>(&part, first),
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
    for first in (0..KEYS).step_by(VALUE_ROWS).take_while(|first| v.seen >> first != 0) {
        for head in 0..heads.n {
            heads.fetch_ahead(v.values, head, v.stride, E::row_bytes(v.d), first, VALUE_ROWS);
            for tile in queries {
                let query = head * heads.n_queries + tile.first;
                let seen = tile.seen >> first & ((1 << VALUE_ROWS) - 1);
                if seen == 0 {
                    continue;
                }
                let is_first = tile.seen.trailing_zeros() as usize >= first;
                // SAFETY: `head < heads.n`, the tile's queries belong to the head, and only rows with set
                // bits are read (function contract).
                unsafe {
                    let part = Values {
                        values: v.values.add(head * heads.stride + first * v.stride),
                        weights: v.weights.add(query * KEYS + first),
                        factors: if is_first {
                            v.factors.wrapping_add(query)
                        } else {
                            std::ptr::null()
                        },
                        out: v.out.add(query * v.d),
                        seen,
                        ..*v
                    };
                    match tile.n {
                        1 => values::<V, E, 1>(&part),
                        2 => values::<V, E, 2>(&part),
                        3 => values::<V, E, 3>(&part),
                        _ => values::<V, E, SUMS>(&part),
                    }
                }
            }
        }
    }
}
