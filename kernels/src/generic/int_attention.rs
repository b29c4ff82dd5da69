//! Attention of many queries to several pages in 16-bit integers, for CPUs without a tile unit.
//!
//! Every lane is a key or a column of values, so nothing is added across lanes:
//!
//! ```text
//! packed keys (32 keys x pairs of elements)          packed values (32 columns x pairs of cells)
//! pair 0 | k0[0..2] k1[0..2] .. k31[0..2] |          pair 0 | v0[c] v1[c]  for c in 0..32 |
//! pair 1 | k0[2..4] k1[2..4] ..           |          pair 1 | v2[c] v3[c]  ..             |
//!   ..   scales of the keys                            ..   scales of the cells and their inverses
//!
//! scores:   s[key]  = sum over pairs of q[pair] . k[pair]  * scale_q * scale_k      # i32, exact
//! softmax:  p[cell] = exp(s - max of page)
//!           w[cell] = round(8191 * p[cell] * scale_v[cell] / max of page), scale per page
//! values:   o[col] += sum over pairs of w[pair] . v[pair]  * scale_w                # i32, exact
//! ```
//!
//! The number of bits is chosen so that sums fit 32 bits:
//!
//! - Queries and keys have one scale each and up to 16 bits, depending on their length.
//! - Values have 12 bits and a sign relative to the largest element of their cell.
//! - Weights include the scales of the values, and have 13 bits relative to the largest such weight of the page.
//!
//! A cell that a query does not see has no influence on the query's result, not even by rounding.

use super::attention::{add_to_sum, page_maxima, update_max};
use super::functions::{ExpApprox16, ExpNonPositive, Function};
use super::integers::spread;
use super::tile_attention::{PageRows, TileScores, TileValues, TileWeights, read_values, score_stride};
use crate::limits::KEYS;
use crate::simd::Simd;
use crate::simd::dots::ByteDots;

/// Keys or columns of values that are adjacent in an operand; each contributes a pair of integers.
const COLUMNS: usize = 32;

/// Buffers hold a multiple of this number of queries.
const QUERIES: usize = crate::simd::tiles::COLUMNS;

/// Bytes of a row of pairs.
const ROW: usize = COLUMNS * PAIR;

/// Bytes of a pair of integers.
const PAIR: usize = 2 * size_of::<i16>();

/// Alignment of operands in bytes.
const LINE: usize = 64;

/// Largest integer that represents a softmax weight.
const WEIGHT_MAX: f32 = 8191.0;

/// Largest magnitude of a value, for which sums over a page fit 32 bits.
const VALUE_MAX: f32 = 4095.0;
const _: () = assert!(KEYS as u64 * WEIGHT_MAX as u64 * (VALUE_MAX as u64) < 1 << 31);

/// Returns the largest magnitude of elements for which the sum of `d` products fits 32 bits.
fn element_max(d: usize) -> f32 {
    let squared = ((1u64 << 31) - 1) / d as u64;
    squared.isqrt().min(i16::MAX as u64) as f32
}

/// Returns the size in bytes of the integers of a row of `d` elements, rounded up to whole registers.
const fn row_bytes(d: usize) -> usize {
    (d * size_of::<i16>()).next_multiple_of(LINE)
}

/// Returns the number of pairs of elements of a key, rounded up to whole transposition squares.
const fn pairs(d: usize) -> usize {
    d.div_ceil(2).next_multiple_of(SQUARE)
}

/// Rows and columns of a [`Simd::transpose`].
const SQUARE: usize = 8;

/// Returns the size in bytes of a packed query of `d` elements: its integers and its scale.
pub(crate) const fn query_bytes(d: usize) -> usize {
    spread(row_bytes(d) + LINE)
}

/// Returns the size in bytes of a page of packed keys: the pairs of each [`COLUMNS`] keys, then the scales of
/// all keys.
pub(crate) const fn key_bytes(d: usize) -> usize {
    KEYS * (pairs(d) * PAIR + size_of::<f32>())
}

/// Returns the size in bytes of a page of packed values. A page has the pairs of each [`COLUMNS`] columns, then the
/// scales of all cells and the inverses of the scales.
pub(crate) const fn value_bytes(d: usize) -> usize {
    value_scales_at(d) + 2 * KEYS * size_of::<f32>()
}

/// Returns the offset in bytes of the scales in a page of packed values.
const fn value_scales_at(d: usize) -> usize {
    d.div_ceil(COLUMNS) * COLUMN_BYTES
}
const COLUMN_BYTES: usize = KEYS / 2 * ROW;

/// Returns the distance in bytes between the weights of two queries for `n_pages` pages: integers, and a
/// scale per page.
pub(crate) const fn weight_stride(n_pages: usize) -> usize {
    let scales = (n_pages * size_of::<f32>()).next_multiple_of(LINE);
    spread(n_pages * KEYS * size_of::<i16>() + scales)
}

/// Returns the scale that maps a row to integers of at most `max`, or NaN if an element is not finite.
///
/// # Safety
/// - The CPU supports `V`.
/// - `x` is valid for reads of `d` floats.
#[inline(always)]
unsafe fn scale_of<V: Simd>(x: *const f32, d: usize, max: f32) -> f32 {
    // SAFETY: reads end at `d` (function contract).
    unsafe {
        let (mut largest, mut zeros) = (V::splat(0.0), V::splat(0.0));
        let whole = d / V::LANES * V::LANES;
        for c in (0..whole).step_by(V::LANES) {
            let x = V::load(x.add(c));
            largest = largest.max(x.abs());
            zeros = x.mul_add(V::splat(0.0), zeros);
        }
        if whole < d {
            let x = V::load_partial(x.add(whole), d - whole);
            largest = largest.max(x.abs());
            zeros = x.mul_add(V::splat(0.0), zeros);
        }
        scale_for(largest.largest() + zeros.sum(), max)
    }
}

/// Returns the scale that maps numbers of at most `largest` to integers of at most `max`. Its inverse is
/// finite.
fn scale_for(largest: f32, max: f32) -> f32 {
    // Preserves NaN, which `f32::max` would drop.
    let scale = largest / max;
    if scale < f32::MIN_POSITIVE {
        f32::MIN_POSITIVE
    } else {
        scale
    }
}

/// Quantizes `d` floats with the factor `inverse` and pads them with zeros to [`row_bytes`].
///
/// # Safety
/// - The CPU supports `V`.
/// - `x` is valid for reads of `d` floats, and `to` for writes of [`row_bytes`] bytes.
#[inline(always)]
unsafe fn store_quantized<V: Simd>(x: *const f32, d: usize, inverse: f32, to: *mut u8) {
    // SAFETY: `row_bytes` is a multiple of a register of integers, so the last store ends within the row
    // (function contract).
    unsafe {
        let inverse = V::splat(inverse);
        for c in (0..row_bytes(d) / size_of::<i16>()).step_by(V::LANES) {
            let x = load::<V>(x, c, d).mul(inverse);
            x.store_i16(to.add(c * size_of::<i16>()));
        }
    }
}

/// Loads elements starting at `c` of a row of `n` floats. Elements beyond the end are zero.
///
/// # Safety
/// - The CPU supports `V`.
/// - `row` is valid for reads of `n` floats.
#[inline(always)]
unsafe fn load<V: Simd>(row: *const f32, c: usize, n: usize) -> V {
    let (at, n) = (row.wrapping_add(c), n.saturating_sub(c));
    // SAFETY: reads end at `n` (function contract).
    unsafe {
        if n >= V::LANES {
            V::load(at)
        } else {
            V::load_partial(at, n)
        }
    }
}

/// Packs a query of `d` elements into [`query_bytes`] bytes.
///
/// # Safety
/// - The CPU supports `V`.
/// - `x` is valid for reads of `d` floats, and `out` for writes of [`query_bytes`] bytes.
#[inline(always)]
pub(crate) unsafe fn pack_query<V: Simd>(x: *const f32, d: usize, out: *mut u8) {
    // SAFETY: `out` has `row_bytes` bytes of integers followed by a scale (function contract).
    unsafe {
        let scale = scale_of::<V>(x, d, element_max(d));
        store_quantized::<V>(x, d, 1.0 / scale, out);
        out.add(row_bytes(d)).cast::<f32>().write_unaligned(scale);
    }
}

/// Packs the keys of a page, with zeros for rows whose bit in `mask` is clear. Returns false if a key is
/// not finite.
///
/// # Safety
/// - The CPU supports `V`.
/// - The pointers in `keys` are valid for the sizes given by its fields.
#[inline(always)]
pub(crate) unsafe fn pack_keys<V: Simd>(keys: &PageRows) -> bool {
    let (d, bytes) = (keys.d, row_bytes(keys.d));
    // SAFETY: rows with a set bit are readable, the scratch memory holds a row and `COLUMNS` packed rows, and
    // `out` has [`key_bytes`] bytes per page.
    unsafe {
        let out = keys.out.add(keys.page * key_bytes(d));
        let scales = out.add(KEYS * pairs(d) * PAIR).cast::<f32>();
        let (row, rows) = (keys.scratch, keys.scratch.add(d).cast::<u8>());
        for first in (0..KEYS).step_by(COLUMNS) {
            if keys.mask >> first & u64::from(u32::MAX) == 0 {
                continue;
            }
            for i in 0..COLUMNS {
                let (key, to) = (first + i, rows.add(i * bytes));
                if keys.mask >> key & 1 == 0 {
                    to.write_bytes(0, bytes);
                    *scales.add(key) = 0.0;
                    continue;
                }
                (keys.dequantize)(keys.rows.add(key * keys.stride), row, d);
                let scale = scale_of::<V>(row, d, element_max(d));
                if scale.is_nan() {
                    return false;
                }
                store_quantized::<V>(row, d, 1.0 / scale, to);
                *scales.add(key) = scale;
            }
            transpose::<V>(rows, d, out.add(first * pairs(d) * PAIR));
        }
    }
    true
}

/// Transposes [`COLUMNS`] rows of integers to rows of pairs.
///
/// # Safety
/// - The CPU supports `V`.
/// - `rows` is valid for reads of [`COLUMNS`] rows, and `to` for writes of [`COLUMNS`] rows of pairs.
#[inline(always)]
unsafe fn transpose<V: Simd>(rows: *const u8, d: usize, to: *mut u8) {
    let stride = row_bytes(d) / PAIR;
    let (rows, to) = (rows.cast::<f32>(), to.cast::<f32>());
    for pair in (0..pairs(d)).step_by(SQUARE) {
        for i in (0..COLUMNS).step_by(SQUARE) {
            // SAFETY: squares end at `pairs(d)`, which is within `row_bytes`, and at `COLUMNS` (function
            // contract).
            unsafe { V::transpose(rows.add(i * stride + pair), stride, to.add(pair * COLUMNS + i), COLUMNS) }
        }
    }
}

/// Packs the values of a page. Rows whose bit in `mask` is clear get zeros and the scale 0. Returns false if a
/// value is not finite.
///
/// # Safety
/// - The CPU supports `V`.
/// - The pointers in `values` are valid for the sizes given by its fields.
#[inline(always)]
pub(crate) unsafe fn pack_values<V: Simd>(values: &PageRows) -> bool {
    let d = values.d;
    // SAFETY: columns end at `d`, the scratch memory holds [`KEYS`] rows, and `out` has [`value_bytes`] bytes
    // per page.
    unsafe {
        let rows = values.scratch;
        if !read_values::<V>(values, rows) {
            return false;
        }
        let out = values.out.add(values.page * value_bytes(d));
        let [scales, inverses] = &mut *out.add(value_scales_at(d)).cast::<[[f32; KEYS]; 2]>();
        for i in 0..KEYS {
            (scales[i], inverses[i]) = (0.0, 0.0);
            if values.mask >> i & 1 == 1 {
                scales[i] = scale_of::<V>(rows.add(i * d), d, VALUE_MAX);
                inverses[i] = 1.0 / scales[i];
            }
        }
        for c in (0..d).step_by(COLUMNS) {
            let to = out.add(c / COLUMNS * COLUMN_BYTES);
            pack_columns::<V>(rows.add(c), d, COLUMNS.min(d - c), inverses, to);
        }
    }
    true
}

/// Packs `n <= COLUMNS` columns of the values, each row times its element of `inverses`. Missing columns are
/// zero.
///
/// # Safety
/// - The CPU supports `V`.
/// - `rows` is valid for reads of `n` floats in each of [`KEYS`] rows, and `out` for writes of the packed
///   columns.
#[inline(always)]
unsafe fn pack_columns<V: Simd>(rows: *const f32, stride: usize, n: usize, inverses: &[f32; KEYS], out: *mut u8) {
    // SAFETY: `load` reads only the first `n` columns of each row, and `out` has `COLUMN_BYTES` bytes
    // (function contract).
    unsafe {
        for pair in 0..KEYS / 2 {
            let even = rows.wrapping_add(2 * pair * stride);
            let odd = even.wrapping_add(stride);
            let [of_even, of_odd] = [2 * pair, 2 * pair + 1].map(|i| V::splat(inverses[i]));
            for c in (0..COLUMNS).step_by(V::LANES) {
                let (even, odd) = (load::<V>(even, c, n), load::<V>(odd, c, n));
                V::store_i16_pairs(even.mul(of_even), odd.mul(of_odd), out.add(pair * ROW + c * PAIR));
            }
        }
    }
}

/// Computes the scores of queries with keys, skipping groups of [`COLUMNS`] keys without a set bit in
/// `mask`.
///
/// # Safety
/// - The CPU supports `D`.
/// - The pointers in `s` are valid for the sizes given by its fields.
#[inline(always)]
pub(crate) unsafe fn scores<D: ByteDots, const N: usize>(s: &TileScores) {
    let x_stride = query_bytes(s.d);
    let stride = score_stride(s.n_pages);
    // SAFETY: keys end at `KEYS` of the last page, and queries at `n_queries` rounded up to `QUERIES`
    // (function contract).
    unsafe {
        for at in (0..s.n_pages * KEYS).step_by(COLUMNS) {
            let (page, first) = (at / KEYS, at % KEYS);
            if *s.mask.add(page) >> first & u64::from(u32::MAX) == 0 {
                continue;
            }
            let keys = s.keys.add(page * key_bytes(s.d));
            let scales = keys.add(KEYS * pairs(s.d) * PAIR).cast::<f32>().add(first);
            let keys = keys.add(first * pairs(s.d) * PAIR);
            for q in (0..s.n_queries.next_multiple_of(QUERIES)).step_by(N) {
                let x = s.queries.add(q * x_stride);
                for c in (0..COLUMNS).step_by(2 * D::Float::LANES) {
                    let sums = products::<D, N>(x, x_stride, keys.add(c * PAIR), s.d.div_ceil(2));
                    for (i, sums) in sums.into_iter().enumerate() {
                        let scale = D::Float::splat(*x.add(i * x_stride + row_bytes(s.d)).cast::<f32>());
                        for (half, sum) in sums.into_iter().enumerate() {
                            let c = c + half * D::Float::LANES;
                            let score = sum.floats().mul(scale.mul(D::Float::load(scales.add(c))));
                            score.store(s.out.add((q + i) * stride + at + c));
                        }
                    }
                }
            }
        }
    }
}

/// Returns the dot products of `N` rows of pairs with two registers of columns.
///
/// # Safety
/// - The CPU supports `D`.
/// - `x` is valid for `N` rows of `pairs` pairs, and `columns` for `pairs` rows.
#[inline(always)]
unsafe fn products<D: ByteDots, const N: usize>(
    x: *const u8,
    x_stride: usize,
    columns: *const u8,
    pairs: usize,
) -> [[D; 2]; N] {
    // SAFETY: `pair < pairs` and `i < N` (function contract).
    unsafe {
        let mut sums = [[D::zero(); 2]; N];
        for pair in 0..pairs {
            let columns = columns.add(pair * ROW);
            let (a, b) = (D::load(columns), D::load(columns.add(D::Float::LANES * PAIR)));
            for i in 0..N {
                let x = D::broadcast(x.add(i * x_stride + pair * PAIR));
                sums[i][0] = sums[i][0].add_pair_dots(x, a);
                sums[i][1] = sums[i][1].add_pair_dots(x, b);
            }
        }
        sums
    }
}

/// Performs a step of the online softmax. Its weights are an operand of [`values`].
///
/// # Safety
/// - The CPU supports `V`.
/// - The pointers in `w` are valid for the sizes given by its fields.
#[inline(always)]
pub(crate) unsafe fn weights<V: Simd>(w: &TileWeights) {
    let s = &w.softmax;
    // SAFETY: queries are below `n_queries`, and the pages `first..first + n_pages` are part of the operand
    // (function contract).
    unsafe {
        let hidden = V::splat(f32::NEG_INFINITY);
        for q in 0..s.n_queries {
            let scales = scales_of(s.weights.add(q * s.weight_stride), w.n_pages).add(w.first);
            let mut max = f32::NEG_INFINITY;
            for page in 0..s.n_pages {
                let page_max = page_maxima::<V>(s, q, page, hidden).largest();
                *scales.add(page) = page_max;
                max = max.max(page_max);
            }
            update_max(s, q, max);
        }
        for q in (0..s.n_queries).step_by(V::LANES) {
            let (factors, n) = (s.factors.add(q), s.n_queries - q);
            if n >= V::LANES {
                ExpNonPositive::apply(V::load(factors)).store(factors);
            } else {
                ExpNonPositive::apply(V::load_partial(factors, n)).store_partial(factors, n);
            }
        }
        for q in 0..s.n_queries {
            let sum = store_weights::<V>(w, q);
            add_to_sum(s, q, sum);
        }
    }
}

/// Replaces a subnormal scale by zero. It would add nothing, and arithmetic on subnormal numbers is many
/// times slower on Intel CPUs.
#[inline(always)]
fn normal(scale: f32) -> f32 {
    if scale < f32::MIN_POSITIVE { 0.0 } else { scale }
}

/// Returns the address of the page scales in a row of weights.
fn scales_of(row: *mut u8, n_pages: usize) -> *mut f32 {
    row.wrapping_add(n_pages * KEYS * size_of::<i16>()).cast()
}

/// Smallest divisor of the weights of a page: its inverse times [`WEIGHT_MAX`] is finite.
const MIN_LARGEST: f32 = 1e-33;

/// Upper bound of the weights of hidden cells, which become zero: scores of negative infinity have the smallest
/// result of [`ExpApprox16`].
const HIDDEN: f32 = 1e-37;

/// Converts the scores of query `q` to integer weights with a scale per page, and returns the sum of the
/// weights. The scores are overwritten.
///
/// The sum includes the rounding of the weights, so that rounding does not change the size of equal values. The
/// rounding of a cell with small values is limited to that of a cell whose scale is the largest weight. It would
/// change the sum more than the result.
///
/// # Safety
/// - The CPU supports `V`.
/// - The pointers in `w` are valid for the sizes given by its fields, and `q` is below the number of queries.
#[inline(always)]
unsafe fn store_weights<V: Simd>(w: &TileWeights, q: usize) -> f32 {
    let s = &w.softmax;
    // SAFETY: pages end at `n_pages` and cells at `KEYS`, a multiple of `LANES` (function contract).
    unsafe {
        let row = s.weights.add(q * s.weight_stride);
        let scales = scales_of(row, w.n_pages).add(w.first);
        let max = *s.max.add(q);
        let mut sum = V::splat(0.0);
        for page in 0..s.n_pages {
            let (page_max, to) = (*scales.add(page), row.add((w.first + page) * KEYS * size_of::<i16>()));
            if page_max == f32::NEG_INFINITY {
                to.write_bytes(0, KEYS * size_of::<i16>());
                *scales.add(page) = 0.0;
                continue;
            }
            let values = w.values.add((w.first + page) * value_bytes(w.d));
            let of_values = values.add(value_scales_at(w.d)).cast::<f32>();
            let inverses = of_values.add(KEYS);
            let scores = s.scores.add(q * s.stride + page * KEYS);
            let (mut page_sum, mut largest) = (V::splat(0.0), V::splat(MIN_LARGEST));
            for at in (0..KEYS).step_by(V::LANES) {
                let weight = ExpApprox16::apply(V::load(scores.add(at)).sub(V::splat(page_max)));
                page_sum = page_sum.add(weight);
                let seen = V::splat(0.0).max(weight.sub(V::splat(HIDDEN)));
                let scaled = seen.mul(V::load(of_values.add(at)));
                largest = largest.max(scaled);
                scaled.store(scores.add(at));
            }
            let largest = largest.largest();
            let (steps, step) = (V::splat(WEIGHT_MAX / largest), V::splat(largest / WEIGHT_MAX));
            let most = V::splat(1.0 / largest);
            for at in (0..KEYS).step_by(V::LANES) {
                let exact = V::load(scores.add(at)).mul(steps);
                let weight = exact.round();
                weight.store_i16(to.add(at * size_of::<i16>()));
                let inverse = V::load(inverses.add(at)).min(most);
                page_sum = weight.sub(exact).mul_add(step.mul(inverse), page_sum);
            }
            let scale = ExpNonPositive::apply(V::splat(page_max - max));
            sum = page_sum.mul_add(scale, sum);
            *scales.add(page) = normal(scale.largest() * (largest / WEIGHT_MAX));
        }
        sum.sum()
    }
}

/// Adds weighted values to the sums of queries: `out[q] = factor[q] * out[q] + sum_i weight[q][i] *
/// values[i]`.
///
/// # Safety
/// - The CPU supports `D`.
/// - The pointers in `v` are valid for the sizes given by its fields.
#[inline(always)]
pub(crate) unsafe fn values<D: ByteDots, const N: usize>(v: &TileValues) {
    let (stride, row) = (weight_stride(v.n_pages), KEYS * size_of::<i16>());
    // SAFETY: columns end at `v.d`, sums at `n_queries`, and weights at `n_queries` rounded up to `QUERIES`
    // (function contract).
    unsafe {
        for page in v.first..v.first + v.n {
            for c in (0..v.d).step_by(COLUMNS) {
                let columns = v.values.add(page * value_bytes(v.d) + c / COLUMNS * COLUMN_BYTES);
                for q in (0..v.n_queries).step_by(N) {
                    let weights = v.weights.add(q * stride);
                    for at in (0..COLUMNS.min(v.d - c)).step_by(2 * D::Float::LANES) {
                        let sums = products::<D, N>(weights.add(page * row), stride, columns.add(at * PAIR), KEYS / 2);
                        for (i, sums) in sums.into_iter().enumerate().take(v.n_queries - q) {
                            let factor = if page == v.first { *v.factors.add(q + i) } else { 1.0 };
                            let scale = *scales_of(weights.add(i * stride).cast_mut(), v.n_pages).add(page);
                            add::<D>(v, q + i, c + at, sums, factor, scale);
                        }
                    }
                }
            }
        }
    }
}

/// Adds scaled sums to those of query `q`, two registers of columns starting at column `c`.
///
/// # Safety
/// - The CPU supports `D`.
/// - `v.out` is valid for the sums of query `q`.
#[inline(always)]
unsafe fn add<D: ByteDots>(v: &TileValues, q: usize, c: usize, sums: [D; 2], factor: f32, scale: f32) {
    for (half, sum) in sums.into_iter().enumerate() {
        let c = c + half * D::Float::LANES;
        // SAFETY: columns end at `v.d` (function contract).
        unsafe {
            let (factor, scale) = (D::Float::splat(factor), D::Float::splat(scale));
            let (out, n) = (v.out.wrapping_add(q * v.d + c), v.d.saturating_sub(c));
            if n >= D::Float::LANES {
                let sum = sum.floats().mul_add(scale, D::Float::load(out).mul(factor));
                sum.store(out);
            } else if n > 0 {
                let before = D::Float::load_partial(out, n).mul(factor);
                sum.floats().mul_add(scale, before).store_partial(out, n);
            }
        }
    }
}
