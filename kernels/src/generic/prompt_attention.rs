//! Attention of many queries to a page: each lane of a register is a query, from the products with keys to the weighted sums of values, so that nothing
//! is added up or moved between lanes.
//!
//! Queries lie in panels of some registers: `[d][panel]`. Scores are `[KEYS][panel]`, sums of values `[d][panel]`. Keys and values are floats that are read
//! into every lane, for both products by one kernel: of four rows a number each, times the panel's registers.

use super::functions::{Exp2UpTo0, Function, Tanh};
use super::tile_packing::Dequantize;
use crate::attention::KEYS;
use crate::simd::Simd;

/// Rows of keys, or columns of values, that are multiplied side by side.
pub(crate) const ROWS: usize = 4;

/// Registers of the widest panel: with [`ROWS`] rows they make more sums than it takes to hide the latency of additions.
pub(crate) const MOST_REGISTERS: usize = 3;

/// Most queries of a panel.
pub(crate) const MOST_QUERIES: usize = 16 * MOST_REGISTERS;

/// Elements of queries that are multiplied before the next keys: those of a panel stay in the first-level cache.
const STEP: usize = 128;

/// Floats from a row of `d` floats to the next: an odd number of cache lines, so that a column of rows does not fall on few places of a cache.
pub(crate) const fn row_stride(d: usize) -> usize {
    const LINE: usize = 16;
    (d.div_ceil(LINE) | 1) * LINE
}

/// The keys or values of a page.
pub(crate) struct CachedRows {
    pub rows: *const u8,
    /// Bytes from one row to the next.
    pub stride: usize,
    /// Elements of a row.
    pub d: usize,
    pub dequantize: Dequantize,
    /// The rows that are read, by bits, at least one.
    pub wanted: u64,
    /// [`KEYS`] rows, [`row_stride`] floats apart.
    pub out: *mut f32,
    /// True if numbers that are not finite are looked for.
    pub is_checked: bool,
}

/// Reads the rows that are wanted as floats. Others between them, and up to multiples of [`ROWS`], become zero. False if it was to be looked for
/// numbers that are not finite and there is one.
///
/// # Safety
/// The CPU has `V`'s instructions, and the pointers are valid for what the fields say.
#[inline(always)]
pub(crate) unsafe fn convert<V: Simd>(r: &CachedRows) -> bool {
    // SAFETY: the caller's promise; rows lie below `KEYS`.
    unsafe {
        // A sum of zeros, unless something is not finite.
        let mut zeros = V::splat(0.0);
        let (d, stride) = (r.d, row_stride(r.d));
        for i in cells_of(r.wanted) {
            let row = r.out.add(i * stride);
            if r.wanted >> i & 1 == 0 {
                row.write_bytes(0, stride);
                continue;
            }
            (r.dequantize)(r.rows.add(i * r.stride), row, d);
            if !r.is_checked {
                continue;
            }
            let whole = d / V::LANES * V::LANES;
            for c in (0..whole).step_by(V::LANES) {
                zeros = V::load(row.add(c)).mul_add(V::splat(0.0), zeros);
            }
            if whole < d {
                let rest = V::load_partial(row.add(whole), d - whole);
                zeros = rest.mul_add(V::splat(0.0), zeros);
            }
        }
        zeros.sum() == 0.0
    }
}

/// From the first cell whose bit is set to the last, up to multiples of [`ROWS`]. At least one is set.
pub(crate) fn cells_of(bits: u64) -> std::ops::Range<usize> {
    let (first, last) = (bits.trailing_zeros() as usize, bits.ilog2() as usize);
    first / ROWS * ROWS..(last + 1).next_multiple_of(ROWS)
}

/// A panel of queries and a page.
pub(crate) struct PanelPage {
    /// `[dk][panel]`
    pub queries: *const f32,
    /// Elements of a query and of a key.
    pub dk: usize,
    /// As [`convert`] writes them.
    pub keys: *const f32,
    /// As [`convert`] writes them.
    pub values: *const f32,
    /// Elements of a value.
    pub dv: usize,
    /// The cells that are looked at: multiples of [`ROWS`].
    pub first: usize,
    pub end: usize,
    /// The cells that each query sees, the low halves of its bits and the high ones: `[2][MOST_QUERIES]`. Null if all see all.
    pub seen: *const u32,
    /// Bound of the scores, 0 for none.
    pub softcap: f32,
    /// Memory for scores: `[KEYS][panel]`
    pub scores: *mut f32,
    /// The largest score so far.
    pub max: *mut f32,
    /// The sum of e^(score - largest).
    pub sum: *mut f32,
    /// Weighted sums of values: `[dv][panel]`, `dv` rounded up to a multiple of [`ROWS`].
    pub sums: *mut f32,
}

/// Attends a panel of `R` registers of queries to a page.
///
/// # Safety
/// The CPU has `V`'s instructions, and the pointers are valid for what the fields say.
#[inline(always)]
pub(crate) unsafe fn attend<V: Simd, const R: usize>(p: &PanelPage) {
    // SAFETY: the caller's promise.
    unsafe {
        scores::<V, R>(p);
        if p.softcap != 0.0 {
            bound::<V, R>(p);
        }
        let largest = if p.seen.is_null() {
            largest::<V, R>(p)
        } else {
            largest_seen::<V, R>(p)
        };
        let factors = weights::<V, R>(p, largest);
        add_values::<V, R>(p, factors);
    }
}

/// Numbers of [`ROWS`] rows, each read into all lanes, times registers.
struct Factors {
    /// The first number.
    a: *const f32,
    /// Floats from the numbers of a row to those of the next.
    row: usize,
    /// Floats from a number of a row to the next.
    step: usize,
    /// The registers of each number, one after another.
    b: *const f32,
    /// Numbers of a row.
    n: usize,
}

/// Adds the products to sums.
///
/// # Safety
/// The CPU has `V`'s instructions, and the pointers are valid for what the fields say.
#[inline(always)]
unsafe fn multiply<V: Simd, const R: usize>(f: &Factors, sums: &mut [[V; R]; ROWS]) {
    const TURN: usize = 4;
    let &Factors { a, row, step, b, n } = f;
    // SAFETY: the caller's promise: numbers below `n`.
    unsafe {
        let mut k = 0;
        while k + TURN <= n {
            for i in k..k + TURN {
                add(a.add(i * step), row, b.add(i * R * V::LANES), sums);
            }
            k += TURN;
        }
        while k < n {
            add(a.add(k * step), row, b.add(k * R * V::LANES), sums);
            k += 1;
        }
    }
}

/// Adds the products of a number of each row.
///
/// # Safety
/// As for [`multiply`].
#[inline(always)]
unsafe fn add<V: Simd, const R: usize>(a: *const f32, row: usize, b: *const f32, sums: &mut [[V; R]; ROWS]) {
    // SAFETY: the caller's promise.
    unsafe {
        let [b]: [[V; R]; 1] = load(b);
        for (i, sums) in sums.iter_mut().enumerate() {
            let a = V::splat(*a.add(i * row));
            for (sum, b) in sums.iter_mut().zip(b) {
                *sum = b.mul_add(a, *sum);
            }
        }
    }
}

/// Products of the queries with the keys.
///
/// # Safety
/// As for [`attend`].
#[inline(always)]
unsafe fn scores<V: Simd, const R: usize>(p: &PanelPage) {
    let stride = row_stride(p.dk);
    for c in (0..p.dk).step_by(STEP) {
        for cell in (p.first..p.end).step_by(ROWS) {
            // SAFETY: the caller's promise; cells lie below `KEYS`, elements below `dk`.
            unsafe {
                let out = p.scores.add(cell * R * V::LANES);
                let mut sums = [[V::splat(0.0); R]; ROWS];
                if c > 0 {
                    sums = load(out);
                }
                let factors = Factors {
                    a: p.keys.add(cell * stride + c),
                    row: stride,
                    step: 1,
                    b: p.queries.add(c * R * V::LANES),
                    n: STEP.min(p.dk - c),
                };
                multiply(&factors, &mut sums);
                store(sums, out);
            }
        }
    }
}

/// Adds the weighted values to their sums so far, times factors.
///
/// # Safety
/// As for [`attend`].
#[inline(always)]
unsafe fn add_values<V: Simd, const R: usize>(p: &PanelPage, factors: [V; R]) {
    let stride = row_stride(p.dv);
    for column in (0..p.dv).step_by(ROWS) {
        // SAFETY: the caller's promise; columns lie below `dv` rounded up.
        unsafe {
            let out = p.sums.add(column * R * V::LANES);
            let mut sums: [[V; R]; ROWS] = load(out);
            for sums in &mut sums {
                for (sum, factor) in sums.iter_mut().zip(factors) {
                    *sum = sum.mul(factor);
                }
            }
            let factors = Factors {
                a: p.values.add(p.first * stride + column),
                row: 1,
                step: stride,
                b: p.scores.add(p.first * R * V::LANES),
                n: p.end - p.first,
            };
            multiply(&factors, &mut sums);
            store(sums, out);
        }
    }
}

/// # Safety
/// The CPU has `V`'s instructions, `from` is valid for the registers.
#[inline(always)]
unsafe fn load<V: Simd, const R: usize, const N: usize>(from: *const f32) -> [[V; R]; N] {
    // SAFETY: the caller's promise.
    unsafe {
        let mut values = [[V::splat(0.0); R]; N];
        for (i, value) in values.as_flattened_mut().iter_mut().enumerate() {
            *value = V::load(from.add(i * V::LANES));
        }
        values
    }
}

/// # Safety
/// The CPU has `V`'s instructions, `to` is valid for the registers.
#[inline(always)]
unsafe fn store<V: Simd, const R: usize, const N: usize>(values: [[V; R]; N], to: *mut f32) {
    for (i, value) in values.as_flattened().iter().enumerate() {
        // SAFETY: the caller's promise.
        unsafe { value.store(to.add(i * V::LANES)) }
    }
}

/// Bounds the scores by a soft cap.
///
/// # Safety
/// As for [`attend`].
#[inline(always)]
unsafe fn bound<V: Simd, const R: usize>(p: &PanelPage) {
    // SAFETY: the caller's promise; cells lie below `KEYS`.
    unsafe {
        let (cap, inverse) = (V::splat(p.softcap), V::splat(1.0 / p.softcap));
        for i in p.first * R..p.end * R {
            let x = p.scores.add(i * V::LANES);
            Tanh::apply(V::load(x).mul(inverse)).mul(cap).store(x);
        }
    }
}

/// The largest score of each query.
///
/// # Safety
/// As for [`attend`].
#[inline(always)]
unsafe fn largest<V: Simd, const R: usize>(p: &PanelPage) -> [V; R] {
    // SAFETY: the caller's promise; cells lie below `KEYS`.
    unsafe {
        let mut largest = [V::splat(f32::NEG_INFINITY); R];
        for cell in p.first..p.end {
            let [x]: [[V; R]; 1] = load(p.scores.add(cell * R * V::LANES));
            for (largest, x) in largest.iter_mut().zip(x) {
                *largest = x.max(*largest);
            }
        }
        largest
    }
}

/// The same of the scores that are seen. The others become minus infinity.
///
/// # Safety
/// As for [`attend`].
#[inline(always)]
unsafe fn largest_seen<V: Simd, const R: usize>(p: &PanelPage) -> [V; R] {
    const HALF: usize = KEYS / 2;
    // SAFETY: the caller's promise; cells lie below `KEYS`.
    unsafe {
        let hidden = V::splat(f32::NEG_INFINITY);
        let mut largest = [hidden; R];
        for half in 0..2 {
            let seen = p.seen.add(half * MOST_QUERIES);
            let mut words = [V::load_words(seen.cast()); R];
            for (r, words) in words.iter_mut().enumerate() {
                *words = V::load_words(seen.add(r * V::LANES).cast());
            }
            let cells = p.first.max(half * HALF)..p.end.min((half + 1) * HALF);
            for cell in cells {
                let bit = 1 << (cell % HALF);
                for r in 0..R {
                    let at = p.scores.add((cell * R + r) * V::LANES);
                    let x = V::select(V::has_bit(words[r], bit), V::load(at), hidden);
                    x.store(at);
                    largest[r] = x.max(largest[r]);
                }
            }
        }
        largest
    }
}

/// Makes weights of the scores, whose largest are given, and adds them to the sum. Returns the factors for what was summed up before.
///
/// # Safety
/// As for [`attend`].
#[inline(always)]
unsafe fn weights<V: Simd, const R: usize>(p: &PanelPage, largest: [V; R]) -> [V; R] {
    // SAFETY: the caller's promise; cells lie below `KEYS`.
    unsafe {
        let log2_e = V::splat(std::f32::consts::LOG2_E);
        // Of the largest score. That of none, minus infinity, is less than any score but can be subtracted.
        let exponent = |max: V| max.max(V::splat(-1e38)).mul(log2_e);
        let none = V::splat(0.0);
        let (mut factors, mut exponents, mut sums) = ([none; R], [none; R], [none; R]);
        for r in 0..R {
            let at = p.max.add(r * V::LANES);
            let before = V::load(at);
            let max = largest[r].max(before);
            max.store(at);
            let after = exponent(max);
            factors[r] = Exp2UpTo0::apply(exponent(before).sub(after));
            exponents[r] = none.sub(after);
        }
        for cell in p.first..p.end {
            for r in 0..R {
                let at = p.scores.add((cell * R + r) * V::LANES);
                let weight = Exp2UpTo0::apply(V::load(at).mul_add(log2_e, exponents[r]));
                weight.store(at);
                sums[r] = sums[r].add(weight);
            }
        }
        for r in 0..R {
            let at = p.sum.add(r * V::LANES);
            V::load(at).mul_add(factors[r], sums[r]).store(at);
        }
        factors
    }
}

/// Rows of floats.
pub(crate) struct Matrix {
    pub from: *const f32,
    pub rows: usize,
    pub columns: usize,
    /// Floats from one row to the next.
    pub stride: usize,
    /// Receives the columns as rows.
    pub to: *mut f32,
    /// Floats from one of those to the next.
    pub to_stride: usize,
}

/// Writes the columns of a matrix as rows.
///
/// # Safety
/// The CPU has `V`'s instructions, and the pointers are valid for what the fields say.
#[inline(always)]
pub(crate) unsafe fn transpose<V: Simd>(m: &Matrix) {
    /// Rows and columns that are transposed in registers.
    const SQUARE: usize = 8;
    let (rows, columns) = (m.rows / SQUARE * SQUARE, m.columns / SQUARE * SQUARE);
    // SAFETY: the caller's promise: all lies within the matrices.
    unsafe {
        for i in (0..rows).step_by(SQUARE) {
            for j in (0..columns).step_by(SQUARE) {
                let (from, to) = (m.from.add(i * m.stride + j), m.to.add(j * m.to_stride + i));
                V::transpose(from, m.stride, to, m.to_stride);
            }
        }
        for i in 0..m.rows {
            for j in if i < rows { columns } else { 0 }..m.columns {
                *m.to.add(j * m.to_stride + i) = *m.from.add(i * m.stride + j);
            }
        }
    }
}
