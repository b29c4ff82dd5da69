//! Attention of many queries to some pages by products of integers of 16 bits: products with keys, a step of the online softmax, and weighted sums of values.
//!
//! A query and a key have a scale each, and as many bits as keep sums of their products in 32. Weights have 13 bits of the largest of their page, values 12 and a sign of
//! the largest of theirs in [`COLUMNS`] columns. Sums of a page are integers; scales follow behind them.
//!
//! A lane is a key or a column of values, so that nothing is added up across lanes.

use super::attention::{add_to_sum, larger_of_page, raise_to};
use super::functions::{ExpOf16Bits, ExpUpTo0, Function};
use super::integers::spread;
use super::tile_attention::{PageRows, TileScores, TileValues, TileWeights, read_values, score_stride};
use crate::attention::KEYS;
use crate::simd::Simd;
use crate::simd::dots::ByteDots;

/// Keys, or columns of values, that lie side by side in an operand, each a pair of integers.
const COLUMNS: usize = 32;

/// Queries of which there is memory for a multiple.
const QUERIES: usize = crate::simd::tiles::COLUMNS;

/// Bytes of a row of pairs.
const ROW: usize = COLUMNS * PAIR;

/// Bytes of a pair of integers.
const PAIR: usize = 2 * size_of::<i16>();

/// To whose multiples operands are aligned.
const LINE: usize = 64;

/// The largest weight.
const WEIGHT_MAX: f32 = 8191.0;

/// The largest magnitude of a value: sums over a page fit 32 bits.
const VALUE_MAX: f32 = 4095.0;
const _: () = assert!(KEYS as u64 * WEIGHT_MAX as u64 * (VALUE_MAX as u64) < 1 << 31);

/// Largest magnitude of the elements of a query and of a key: sums of products of `d` of them fit 32 bits.
fn element_max(d: usize) -> f32 {
    let squared = ((1u64 << 31) - 1) / d as u64;
    squared.isqrt().min(i16::MAX as u64) as f32
}

/// Bytes of the integers of a row of `d` elements: whole registers may be written.
const fn row_bytes(d: usize) -> usize {
    (d * size_of::<i16>()).next_multiple_of(LINE)
}

/// Pairs of elements of a key, as many as are transposed at a time.
const fn pairs(d: usize) -> usize {
    d.div_ceil(2).next_multiple_of(SQUARE)
}

/// Rows and columns that [`Simd::transpose`] takes.
const SQUARE: usize = 8;

/// Bytes of a query of `d` elements as an operand: its integers and its scale.
pub(crate) const fn query_bytes(d: usize) -> usize {
    spread(row_bytes(d) + LINE)
}

/// Bytes of the keys of a page as an operand: for each [`COLUMNS`] keys their pairs, one after the other, and then the scales of all keys.
pub(crate) const fn key_bytes(d: usize) -> usize {
    KEYS * (pairs(d) * PAIR + size_of::<f32>())
}

/// Bytes of the values of a page as an operand: for each [`COLUMNS`] columns the pairs of neighbouring values, and a scale.
pub(crate) const fn value_bytes(d: usize) -> usize {
    d.div_ceil(COLUMNS) * BYTES_OF_COLUMNS
}
const BYTES_OF_COLUMNS: usize = KEYS / 2 * ROW + LINE;

/// Bytes from the weights of a query for `n_pages` to those of the next: their integers, and a scale for each page.
pub(crate) const fn weight_stride(n_pages: usize) -> usize {
    let scales = (n_pages * size_of::<f32>()).next_multiple_of(LINE);
    spread(n_pages * KEYS * size_of::<i16>() + scales)
}

/// The scale with which a row gets integers up to `max`, not a number if one of its elements is none or infinite.
///
/// # Safety
/// The CPU has `V`'s instructions, and `x` is valid for `d` floats.
#[inline(always)]
unsafe fn scale_of<V: Simd>(x: *const f32, d: usize, max: f32) -> f32 {
    // SAFETY: the caller's promise.
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

/// The scale with which numbers up to `largest` become integers up to `max`. Its inverse is finite.
fn scale_for(largest: f32, max: f32) -> f32 {
    // Not a number stays one: `f32::max` would drop it.
    let scale = largest / max;
    if scale < f32::MIN_POSITIVE {
        f32::MIN_POSITIVE
    } else {
        scale
    }
}

/// Writes `d` floats times `inverse` as integers, [`row_bytes`] with zeros behind them.
///
/// # Safety
/// The CPU has `V`'s instructions, and both are valid for as much.
#[inline(always)]
unsafe fn put_row<V: Simd>(x: *const f32, d: usize, inverse: f32, to: *mut u8) {
    // SAFETY: the caller's promise: a whole register of integers does not end behind a row that they are multiples of.
    unsafe {
        let inverse = V::splat(inverse);
        for c in (0..row_bytes(d) / size_of::<i16>()).step_by(V::LANES) {
            let x = load::<V>(x, c, d).mul(inverse);
            x.store_i16(to.add(c * size_of::<i16>()));
        }
    }
}

/// Elements from `c` on of a row of `n`, zeros behind them.
///
/// # Safety
/// The CPU has `V`'s instructions, and `row` is valid for `n` floats.
#[inline(always)]
unsafe fn load<V: Simd>(row: *const f32, c: usize, n: usize) -> V {
    let (at, n) = (row.wrapping_add(c), n.saturating_sub(c));
    // SAFETY: the caller's promise.
    unsafe {
        if n >= V::LANES {
            V::load(at)
        } else {
            V::load_partial(at, n)
        }
    }
}

/// Writes a query of `d` elements as an operand, [`query_bytes`] long.
///
/// # Safety
/// The CPU has `V`'s instructions, `x` is valid for `d` floats and `out` for the operand.
#[inline(always)]
pub(crate) unsafe fn put_query<V: Simd>(x: *const f32, d: usize, out: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe {
        let scale = scale_of::<V>(x, d, element_max(d));
        put_row::<V>(x, d, 1.0 / scale, out);
        out.add(row_bytes(d)).cast::<f32>().write_unaligned(scale);
    }
}

/// Packs the keys of a page that are wanted, zeros for others. False if one is not finite.
///
/// # Safety
/// The CPU has `V`'s instructions, and the pointers are valid for what the fields say.
#[inline(always)]
pub(crate) unsafe fn put_keys<V: Simd>(keys: &PageRows) -> bool {
    let (d, bytes) = (keys.d, row_bytes(keys.d));
    // SAFETY: the caller's promise; rows lie within the scratch memory, keys below `n`.
    unsafe {
        let out = keys.out.add(keys.page * key_bytes(d));
        let scales = out.add(KEYS * pairs(d) * PAIR).cast::<f32>();
        let (row, rows) = (keys.scratch, keys.scratch.add(d).cast::<u8>());
        for first in (0..KEYS).step_by(COLUMNS) {
            if keys.wanted >> first & u64::from(u32::MAX) == 0 {
                continue;
            }
            for i in 0..COLUMNS {
                let (key, to) = (first + i, rows.add(i * bytes));
                if keys.wanted >> key & 1 == 0 {
                    to.write_bytes(0, bytes);
                    *scales.add(key) = 0.0;
                    continue;
                }
                (keys.dequantize)(keys.rows.add(key * keys.stride), row, d);
                let scale = scale_of::<V>(row, d, element_max(d));
                if scale.is_nan() {
                    return false;
                }
                put_row::<V>(row, d, 1.0 / scale, to);
                *scales.add(key) = scale;
            }
            transpose::<V>(rows, d, out.add(first * pairs(d) * PAIR));
        }
    }
    true
}

/// Makes rows of pairs of [`COLUMNS`] rows of integers.
///
/// # Safety
/// The CPU has `V`'s instructions, and both are valid for as much.
#[inline(always)]
unsafe fn transpose<V: Simd>(rows: *const u8, d: usize, to: *mut u8) {
    let stride = row_bytes(d) / PAIR;
    let (rows, to) = (rows.cast::<f32>(), to.cast::<f32>());
    for pair in (0..pairs(d)).step_by(SQUARE) {
        for i in (0..COLUMNS).step_by(SQUARE) {
            // SAFETY: the caller's promise: squares of the rows, which are as long as pairs are many.
            unsafe { V::transpose(rows.add(i * stride + pair), stride, to.add(pair * COLUMNS + i), COLUMNS) }
        }
    }
}

/// Packs the values of a page, zeros for those that are not wanted. False if one is not finite.
///
/// # Safety
/// As for [`put_keys`].
#[inline(always)]
pub(crate) unsafe fn put_values<V: Simd>(values: &PageRows) -> bool {
    let d = values.d;
    // SAFETY: the caller's promise; columns lie below `d`.
    unsafe {
        let rows = values.scratch;
        if !read_values::<V>(values, rows) {
            return false;
        }
        let out = values.out.add(values.page * value_bytes(d));
        for c in (0..d).step_by(COLUMNS) {
            put_columns::<V>(
                rows.add(c),
                d,
                COLUMNS.min(d - c),
                out.add(c / COLUMNS * BYTES_OF_COLUMNS),
            );
        }
    }
    true
}

/// Packs `n` columns of the rows of values, [`COLUMNS`] at most, with zeros behind them.
///
/// # Safety
/// As for [`put_keys`].
#[inline(always)]
unsafe fn put_columns<V: Simd>(rows: *const f32, stride: usize, n: usize, out: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut largest = V::splat(0.0);
        for row in 0..KEYS {
            for c in (0..COLUMNS).step_by(V::LANES) {
                largest = largest.max(load::<V>(rows.wrapping_add(row * stride), c, n).abs());
            }
        }
        let scale = scale_for(largest.largest(), VALUE_MAX);
        let inverse = V::splat(1.0 / scale);
        for pair in 0..KEYS / 2 {
            let even = rows.wrapping_add(2 * pair * stride);
            let odd = even.wrapping_add(stride);
            for c in (0..COLUMNS).step_by(V::LANES) {
                let (even, odd) = (load::<V>(even, c, n), load::<V>(odd, c, n));
                V::store_i16_pairs(even.mul(inverse), odd.mul(inverse), out.add(pair * ROW + c * PAIR));
            }
        }
        *out.add(KEYS / 2 * ROW).cast::<f32>() = scale;
    }
}

/// Products of queries with keys. Those with [`COLUMNS`] keys of which none is wanted are left out.
///
/// # Safety
/// The CPU has `D`'s instructions, and the pointers are valid for what the fields say.
#[inline(always)]
pub(crate) unsafe fn scores<D: ByteDots, const N: usize>(s: &TileScores) {
    let x_stride = query_bytes(s.d);
    let stride = score_stride(s.n_pages);
    // SAFETY: the caller's promise; keys lie below `KEYS` of each page, queries below `n_queries` rounded up.
    unsafe {
        for at in (0..s.n_pages * KEYS).step_by(COLUMNS) {
            let (page, first) = (at / KEYS, at % KEYS);
            if *s.wanted.add(page) >> first & u64::from(u32::MAX) == 0 {
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

/// Sums of products of `N` rows of pairs with two registers of columns.
///
/// # Safety
/// The CPU has `D`'s instructions, and the pointers are valid for `pairs`.
#[inline(always)]
unsafe fn products<D: ByteDots, const N: usize>(
    x: *const u8,
    x_stride: usize,
    columns: *const u8,
    pairs: usize,
) -> [[D; 2]; N] {
    // SAFETY: the caller's promise.
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

/// A step of the online softmax, whose weights are an operand of [`values`].
///
/// # Safety
/// The CPU has `V`'s instructions, and the pointers are valid for what the fields say.
#[inline(always)]
pub(crate) unsafe fn weights<V: Simd>(w: &TileWeights) {
    let s = &w.softmax;
    // SAFETY: the caller's promise.
    unsafe {
        let hidden = V::splat(f32::NEG_INFINITY);
        for q in 0..s.n_queries {
            let scales = scales_of(s.weights.add(q * s.weight_stride), w.n_pages).add(w.first);
            let mut max = f32::NEG_INFINITY;
            for page in 0..s.n_pages {
                let of_page = larger_of_page::<V>(s, q, page, hidden).largest();
                *scales.add(page) = of_page;
                max = max.max(of_page);
            }
            raise_to(s, q, max);
        }
        for q in (0..s.n_queries).step_by(V::LANES) {
            let (factors, n) = (s.factors.add(q), s.n_queries - q);
            if n >= V::LANES {
                ExpUpTo0::apply(V::load(factors)).store(factors);
            } else {
                ExpUpTo0::apply(V::load_partial(factors, n)).store_partial(factors, n);
            }
        }
        for q in 0..s.n_queries {
            let sum = put_weights::<V>(w, q);
            add_to_sum(s, q, sum);
        }
    }
}

/// Zero instead of a subnormal scale: it adds nothing to sums of any size, and products with it are many times slower on Intel's cores.
#[inline(always)]
fn normal(scale: f32) -> f32 {
    if scale < f32::MIN_POSITIVE { 0.0 } else { scale }
}

/// The scales of the pages of a row of weights.
fn scales_of(row: *mut u8, n_pages: usize) -> *mut f32 {
    row.wrapping_add(n_pages * KEYS * size_of::<i16>()).cast()
}

/// Makes weights of the scores of query `q`, and scales of the largest scores of pages; returns the sum of the weights.
///
/// # Safety
/// As for [`weights`].
#[inline(always)]
unsafe fn put_weights<V: Simd>(w: &TileWeights, q: usize) -> f32 {
    let s = &w.softmax;
    // SAFETY: the caller's promise.
    unsafe {
        let row = s.weights.add(q * s.weight_stride);
        let scales = scales_of(row, w.n_pages).add(w.first);
        let max = *s.max.add(q);
        let mut sum = V::splat(0.0);
        for page in 0..s.n_pages {
            let (of_page, to) = (*scales.add(page), row.add((w.first + page) * KEYS * size_of::<i16>()));
            if of_page == f32::NEG_INFINITY {
                to.write_bytes(0, KEYS * size_of::<i16>());
                *scales.add(page) = 0.0;
                continue;
            }
            let scale = ExpUpTo0::apply(V::splat(of_page - max)).mul(V::splat(1.0 / WEIGHT_MAX));
            let scores = s.scores.add(q * s.stride + page * KEYS);
            let mut of_weights = V::splat(0.0);
            for at in (0..KEYS).step_by(V::LANES) {
                let weight = ExpOf16Bits::apply(V::load(scores.add(at)).sub(V::splat(of_page)));
                // The sum is of what values are multiplied with, so that what they have in common keeps its size.
                let weight = weight.mul(V::splat(WEIGHT_MAX)).round();
                weight.store_i16(to.add(at * size_of::<i16>()));
                of_weights = of_weights.add(weight);
            }
            sum = of_weights.mul_add(scale, sum);
            *scales.add(page) = normal(scale.largest());
        }
        sum.sum()
    }
}

/// Adds weighted values to the sums of queries: `out[q] = factor[q] out[q] + sum_i weight[q][i] values[i]`.
///
/// # Safety
/// As for [`scores`].
#[inline(always)]
pub(crate) unsafe fn values<D: ByteDots, const N: usize>(v: &TileValues) {
    let (stride, row) = (weight_stride(v.n_pages), KEYS * size_of::<i16>());
    // SAFETY: the caller's promise; columns lie below `d`, queries below `n_queries` or, of weights, below that rounded up.
    unsafe {
        for page in v.first..v.first + v.n {
            for c in (0..v.d).step_by(COLUMNS) {
                let columns = v.values.add(page * value_bytes(v.d) + c / COLUMNS * BYTES_OF_COLUMNS);
                let scale = *columns.add(KEYS / 2 * ROW).cast::<f32>();
                for q in (0..v.n_queries).step_by(N) {
                    let weights = v.weights.add(q * stride);
                    for at in (0..COLUMNS.min(v.d - c)).step_by(2 * D::Float::LANES) {
                        let sums = products::<D, N>(weights.add(page * row), stride, columns.add(at * PAIR), KEYS / 2);
                        for (i, sums) in sums.into_iter().enumerate().take(v.n_queries - q) {
                            let factor = if page == v.first { *v.factors.add(q + i) } else { 1.0 };
                            let of_page = *scales_of(weights.add(i * stride).cast_mut(), v.n_pages).add(page);
                            add::<D>(v, q + i, c + at, sums, factor, normal(of_page * scale));
                        }
                    }
                }
            }
        }
    }
}

/// Adds sums times a scale to those of query `q`, two registers of columns from column `c` on.
///
/// # Safety
/// As for [`values`].
#[inline(always)]
unsafe fn add<D: ByteDots>(v: &TileValues, q: usize, c: usize, sums: [D; 2], factor: f32, scale: f32) {
    for (half, sum) in sums.into_iter().enumerate() {
        let c = c + half * D::Float::LANES;
        // SAFETY: the caller's promise; columns lie below `d`.
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
