//! Attention of some queries to some rows of a cache: products with keys, a step of the online softmax, weighted sums of values.
//!
//! Each sum over the elements of a row, or over rows, has one order, whatever the number of queries that are computed together, so that
//! a token gets the same bits in a prompt and on its own.

use super::functions::{ExpUpTo0, Function};
use crate::attention::KEYS;
use crate::simd::Simd;

/// A type of cache whose rows are read without being converted first.
pub(crate) trait Element {
    /// Bytes of an element.
    const BYTES: usize;

    /// Reads `LANES` elements.
    ///
    /// # Safety
    /// The CPU has `V`'s instructions; `p` is valid for the elements.
    unsafe fn load<V: Simd>(p: *const u8) -> V;

    /// Reads the first `n < LANES` elements; further lanes are zero.
    ///
    /// # Safety
    /// As for [`Element::load`].
    #[inline(always)]
    unsafe fn load_partial<V: Simd>(p: *const u8, n: usize) -> V {
        let mut copy = [0u8; 64];
        // SAFETY: the caller's promise; a register of these types has at most 64 bytes.
        unsafe {
            p.copy_to_nonoverlapping(copy.as_mut_ptr(), n * Self::BYTES);
            Self::load(copy.as_ptr())
        }
    }
}

macro_rules! elements {
    ($( $name:ident, $bytes:literal bytes: $load:expr; )*) => { $(
        pub(crate) struct $name;

        impl Element for $name {
            const BYTES: usize = $bytes;

            #[inline(always)]
            unsafe fn load<V: Simd>(p: *const u8) -> V {
                // SAFETY: the caller's promise.
                unsafe { $load(p) }
            }
        }
    )* };
}

elements! {
    Float, 4 bytes: |p: *const u8| V::load(p.cast());
    Half, 2 bytes: V::load_f16;
    Brain, 2 bytes: V::load_bf16;
}

/// Rows of keys whose products with a row of queries are computed side by side.
pub(crate) const KEYS_OF_TILE: usize = 4;

/// Some rows of keys, and as many queries as the kernel is for.
#[derive(Clone, Copy)]
pub(crate) struct Scores {
    pub keys: *const u8,
    /// Bytes from one row to the next.
    pub stride: usize,
    /// Rows of keys, at least one.
    pub n: usize,
    /// Elements of a key, and of a query.
    pub d: usize,
    /// Queries one after another.
    pub queries: *const f32,
    /// [`KEYS`] floats to a query. Written are `n`, rounded up to a multiple of [`KEYS_OF_TILE`].
    pub out: *mut f32,
}

/// Products of `N` queries with keys of floats.
///
/// # Safety
/// The CPU has `V`'s instructions, and the pointers are valid for what the fields say.
#[inline(always)]
pub(crate) unsafe fn scores<V: Simd, const N: usize>(s: &Scores) {
    for first in (0..s.n).step_by(KEYS_OF_TILE) {
        // SAFETY: the caller's promise.
        unsafe { scores_of_tile::<V, Float, N>(s, first) }
    }
}

/// Products of `N` queries with [`KEYS_OF_TILE`] keys from key `first` on.
///
/// # Safety
/// As for [`scores`].
#[inline(always)]
pub(crate) unsafe fn scores_of_tile<V: Simd, E: Element, const N: usize>(s: &Scores, first: usize) {
    // SAFETY: the caller's promise. Instead of rows that are missing at the end the last one is read.
    unsafe {
        let (start, last) = (s.keys.add(first * s.stride), s.n - first - 1);
        let keys: [*const u8; KEYS_OF_TILE] = std::array::from_fn(|r| start.add(r.min(last) * s.stride));
        // As many sums at a time as fit the registers, with room for converted keys.
        let sums = if N <= 2 || E::BYTES == size_of::<f32>() {
            products::<V, E, N, KEYS_OF_TILE>(s, keys)
        } else {
            let [a, b, c, d] = keys;
            let (low, high) = (products::<V, E, N, 2>(s, [a, b]), products::<V, E, N, 2>(s, [c, d]));
            let mut sums = [[V::splat(0.0); KEYS_OF_TILE]; N];
            for q in 0..N {
                sums[q] = [low[q][0], low[q][1], high[q][0], high[q][1]];
            }
            sums
        };
        for (q, sums) in sums.into_iter().enumerate() {
            let totals = V::sum4(sums);
            s.out
                .add(q * KEYS + first)
                .cast::<[f32; KEYS_OF_TILE]>()
                .write_unaligned(totals);
        }
    }
}

/// Products of `N` queries with `K` keys, not yet summed up over lanes.
///
/// # Safety
/// As for [`scores`].
#[inline(always)]
unsafe fn products<V: Simd, E: Element, const N: usize, const K: usize>(
    s: &Scores,
    keys: [*const u8; K],
) -> [[V; K]; N] {
    // SAFETY: the caller's promise; elements lie below `d`.
    unsafe {
        let mut sums = [[V::splat(0.0); K]; N];
        let mut c = 0;
        while c + V::LANES <= s.d {
            let mut queries = [V::splat(0.0); N];
            for (q, query) in queries.iter_mut().enumerate() {
                *query = V::load(s.queries.add(q * s.d + c));
            }
            for r in 0..K {
                let key: V = E::load(keys[r].add(c * E::BYTES));
                for q in 0..N {
                    sums[q][r] = key.mul_add(queries[q], sums[q][r]);
                }
            }
            c += V::LANES;
        }
        if c < s.d {
            for r in 0..K {
                let key: V = E::load_partial(keys[r].add(c * E::BYTES), s.d - c);
                for q in 0..N {
                    let query = V::load_partial(s.queries.add(q * s.d + c), s.d - c);
                    sums[q][r] = key.mul_add(query, sums[q][r]);
                }
            }
        }
        sums
    }
}

/// Scores of some queries with one or more pages, and what each query has gathered so far.
pub(crate) struct Softmax {
    pub n_queries: usize,
    /// Queries of a token, and those of the first token that come before.
    pub group: usize,
    pub before: usize,
    pub n_pages: usize,
    /// [`KEYS`] floats for each page to a query.
    pub scores: *mut f32,
    /// Floats from the scores of one query to those of the next.
    pub stride: usize,
    /// Which of them count, by bits: a word for each page.
    pub seen: *const u64,
    /// Words from those of one token to those of the next.
    pub seen_stride: usize,
    /// The largest score so far.
    pub max: *mut f32,
    /// The sum of e^(score - largest).
    pub sum: *mut f32,
    /// Receives the factor for values that were summed up before.
    pub factors: *mut f32,
    /// Receives the weights, unless these take the place of the scores.
    pub weights: *mut u8,
    /// Bytes from the weights of one query to those of the next.
    pub weight_stride: usize,
}

/// What becomes of weights.
pub(crate) trait PutWeights<V: Simd> {
    /// The exponential function, as precise as they are stored.
    type Exp: Function;

    /// Stores some weights: the scores from `score` on have become them, and they are number `i` and further ones of the row of weights.
    ///
    /// # Safety
    /// The CPU has `V`'s instructions, and what is written is valid for a register.
    unsafe fn put(weights: V, score: *mut f32, row: *mut u8, i: usize);
}

/// Weights take the place of scores.
pub(crate) struct InPlace;

impl<V: Simd> PutWeights<V> for InPlace {
    type Exp = ExpUpTo0;

    #[inline(always)]
    unsafe fn put(weights: V, score: *mut f32, _: *mut u8, _: usize) {
        // SAFETY: the caller's promise.
        unsafe { weights.store(score) }
    }
}

/// Queries whose largest scores and sums are found side by side.
const SIDE_BY_SIDE: usize = 4;

/// More than [`ExpUpTo0`] gives for what is far below 0.
const NEXT_TO_NOTHING: f32 = 1.2e-38;

/// Turns the scores that are seen into weights e^(score - largest); the others weigh next to nothing. The largest scores are found for all
/// queries first, so that the exponential functions of a query need not wait for them.
///
/// # Safety
/// The CPU has `V`'s instructions, and the pointers are valid for what the fields say.
#[inline(always)]
pub(crate) unsafe fn softmax_step<V: Simd, P: PutWeights<V>>(s: &Softmax) {
    for first in (0..s.n_queries).step_by(SIDE_BY_SIDE) {
        // SAFETY: the caller's promise.
        unsafe { raise::<V>(s, first, SIDE_BY_SIDE.min(s.n_queries - first)) }
    }
    for q in (0..s.n_queries).step_by(V::LANES) {
        // SAFETY: the caller's promise.
        unsafe {
            let (factors, n) = (s.factors.add(q), s.n_queries - q);
            if n >= V::LANES {
                ExpUpTo0::apply(V::load(factors)).store(factors);
            } else {
                ExpUpTo0::apply(V::load_partial(factors, n)).store_partial(factors, n);
            }
        }
    }
    for first in (0..s.n_queries).step_by(SIDE_BY_SIDE) {
        let n = SIDE_BY_SIDE.min(s.n_queries - first);
        // SAFETY: the caller's promise.
        unsafe {
            let mut sums = [V::splat(0.0); SIDE_BY_SIDE];
            for i in 0..n {
                sums[i] = put_weights::<V, P>(s, first + i);
            }
            let sums = V::sum4(sums);
            for i in 0..n {
                add_to_sum(s, first + i, sums[i]);
            }
        }
    }
}

/// Finds the largest scores of `n` queries from `first` on. Their factors become what these exceed the largest so far by, negated.
///
/// # Safety
/// As for [`softmax_step`].
#[inline(always)]
unsafe fn raise<V: Simd>(s: &Softmax, first: usize, n: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut largest = [V::splat(f32::NEG_INFINITY); SIDE_BY_SIDE];
        for i in 0..n {
            largest[i] = larger::<V>(s, first + i);
        }
        let largest = V::largest4(largest);
        for i in 0..n {
            raise_to(s, first + i, largest[i]);
        }
    }
}

/// Query `q` has a score as large as this. Its factor becomes what the largest score exceeds the largest so far by, negated.
///
/// # Safety
/// As for [`softmax_step`].
#[inline(always)]
pub(super) unsafe fn raise_to(s: &Softmax, q: usize, score: f32) {
    // SAFETY: the caller's promise.
    unsafe {
        let before = *s.max.add(q);
        let max = score.max(before);
        *s.max.add(q) = max;
        // Nothing may have been seen so far: minus infinity.
        *s.factors.add(q) = if max == before { 0.0 } else { before - max };
    }
}

/// Adds weights to the sum of query `q`.
///
/// # Safety
/// As for [`softmax_step`].
#[inline(always)]
pub(super) unsafe fn add_to_sum(s: &Softmax, q: usize, weights: f32) {
    // SAFETY: the caller's promise.
    unsafe {
        let (sum, factor) = (s.sum.add(q), s.factors.add(q));
        // What is left of very large values then would not be next to nothing.
        *factor = if *factor < NEXT_TO_NOTHING { 0.0 } else { *factor };
        *sum = *sum * *factor + weights;
    }
}

/// The scores of query `q` that are seen, the larger ones in each lane; the others are set to minus infinity.
///
/// # Safety
/// As for [`softmax_step`].
#[inline(always)]
unsafe fn larger<V: Simd>(s: &Softmax, q: usize) -> V {
    // SAFETY: the caller's promise.
    unsafe {
        let mut larger = V::splat(f32::NEG_INFINITY);
        for page in 0..s.n_pages {
            larger = larger_of_page(s, q, page, larger);
        }
        larger
    }
}

/// The same of one page, and of `larger`.
///
/// # Safety
/// As for [`softmax_step`].
#[inline(always)]
pub(super) unsafe fn larger_of_page<V: Simd>(s: &Softmax, q: usize, page: usize, mut larger: V) -> V {
    // SAFETY: the caller's promise: `at` stays below KEYS, a multiple of `LANES`.
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

/// Makes weights of the scores of query `q`; returns their sums in lanes.
///
/// # Safety
/// As for [`softmax_step`].
#[inline(always)]
unsafe fn put_weights<V: Simd, P: PutWeights<V>>(s: &Softmax, q: usize) -> V {
    // SAFETY: the caller's promise: `at` stays below the number of scores, a multiple of `LANES`.
    unsafe {
        let (scores, row) = (s.scores.add(q * s.stride), s.weights.wrapping_add(q * s.weight_stride));
        let max = *s.max.add(q);
        let is_blind = max == f32::NEG_INFINITY;
        let (none, max) = (V::splat(0.0), V::splat(max));
        let mut sum = none;
        for at in (0..s.n_pages * KEYS).step_by(V::LANES) {
            let score = scores.add(at);
            let weight = if is_blind {
                none
            } else {
                P::Exp::apply(V::load(score).sub(max))
            };
            P::put(weight, score, row, at);
            sum = sum.add(weight);
        }
        sum
    }
}

/// Some rows of values, and the weights of as many queries as the kernel is for.
#[derive(Clone, Copy)]
pub(crate) struct Values {
    pub values: *const u8,
    /// Bytes from one row to the next.
    pub stride: usize,
    /// The rows that are added, by bits; the others are not read.
    pub seen: u64,
    /// Elements of a row.
    pub d: usize,
    /// [`KEYS`] floats from those of one query to those of the next.
    pub weights: *const f32,
    /// A factor for the sums of each query so far; null for none.
    pub factors: *const f32,
    /// Sums of the queries one after another.
    pub out: *mut f32,
}

/// Adds weighted rows of floats to the sums of `N` queries: `out[q] = factor[q] out[q] + sum_i weight[q][i] values[i]`.
///
/// # Safety
/// The CPU has `V`'s instructions, and the pointers are valid for what the fields say.
#[inline(always)]
pub(crate) unsafe fn values<V: Simd, const N: usize>(v: &Values) {
    let mut at = 0;
    // SAFETY: the caller's promise; columns lie below `d`.
    unsafe {
        // As many sums as hide the latency of additions and fit the registers.
        match N {
            1 => at = whole_columns::<V, N, 8>(v, at),
            2 | 3 => at = whole_columns::<V, N, 4>(v, at),
            _ if V::LANES == 16 => at = whole_columns::<V, N, 4>(v, at),
            _ => {}
        }
        at = whole_columns::<V, N, 2>(v, at);
        at = whole_columns::<V, N, 1>(v, at);
        if at < v.d {
            last_columns::<V, N>(v, at);
        }
    }
}

/// The rows whose bits are set, ascending.
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

/// Adds `C` registers of columns at a time from column `at` on, while there are as many; returns the column after them.
///
/// # Safety
/// As for [`values`].
#[inline(always)]
unsafe fn whole_columns<V: Simd, const N: usize, const C: usize>(v: &Values, mut at: usize) -> usize {
    while at + C * V::LANES <= v.d {
        // SAFETY: the caller's promise; the columns lie below `d`.
        unsafe {
            let mut sums = [[V::splat(0.0); C]; N];
            for (q, sums) in sums.iter_mut().enumerate() {
                let factor = V::splat(v.factor(q));
                for (c, sum) in sums.iter_mut().enumerate() {
                    *sum = V::load(v.out.add(q * v.d + at + c * V::LANES)).mul(factor);
                }
            }
            for_each_row!(v.seen, |i| {
                let row = v.values.add(i * v.stride + at * Float::BYTES);
                // The fewer ones wait in registers.
                if N < C {
                    let mut weights = [V::splat(0.0); N];
                    for q in 0..N {
                        weights[q] = V::splat(*v.weights.add(q * KEYS + i));
                    }
                    for c in 0..C {
                        let value: V = Float::load(row.add(c * V::LANES * Float::BYTES));
                        for q in 0..N {
                            sums[q][c] = value.mul_add(weights[q], sums[q][c]);
                        }
                    }
                } else {
                    let mut values = [V::splat(0.0); C];
                    for c in 0..C {
                        values[c] = Float::load(row.add(c * V::LANES * Float::BYTES));
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

/// The columns from `at` on, fewer than a register has.
///
/// # Safety
/// As for [`values`].
#[inline(always)]
unsafe fn last_columns<V: Simd, const N: usize>(v: &Values, at: usize) {
    let n = v.d - at;
    for q in 0..N {
        // SAFETY: the caller's promise; the columns lie below `d`.
        unsafe {
            let out = v.out.add(q * v.d + at);
            let mut sum = V::load_partial(out, n).mul(V::splat(v.factor(q)));
            for_each_row!(v.seen, |i| {
                let values: V = Float::load_partial(v.values.add(i * v.stride + at * Float::BYTES), n);
                sum = values.mul_add(V::splat(*v.weights.add(q * KEYS + i)), sum);
            });
            sum.store_partial(out, n);
        }
    }
}

impl Values {
    /// # Safety
    /// As for [`values`], `q` less than its `N`.
    #[inline(always)]
    pub(super) unsafe fn factor(&self, q: usize) -> f32 {
        if self.factors.is_null() {
            return 1.0;
        }
        // SAFETY: the caller's promise.
        unsafe { *self.factors.add(q) }
    }
}
