//! Attention of many queries to a page by a unit that multiplies tiles: products with keys, and weighted sums of values.
//!
//! Queries and keys are two bfloat16 each, one for what the other leaves over: three of the four products are added up, and scores have some 16 bits.
//! Weights and values are one bfloat16.

use super::integers::spread;
use super::tiles::{Dequantize, transpose};
use crate::attention::KEYS;
use crate::simd::tiles::{COLUMNS, ROWS, STEP, TILE_BYTES, TILE_ROWS, TILE_WIDTH, TileBlock, TileSums};
use crate::simd::{Simd, TileUnit};

/// Products that a product of a query with a key is made of: `high * high + high * low + low * high`, the query's part first.
const PARTS: usize = 3;

/// Bytes of a bfloat16.
const BF16: usize = 2;

/// Bytes of a query's row of weights.
const WEIGHTS: usize = KEYS * BF16;

/// Bytes to whose multiples operands are aligned.
const ALIGN: usize = 64;

const _: () = assert!(KEYS == 2 * ROWS && ROWS == STEP);

/// Tiles that `d` elements of a row fill.
const fn steps(d: usize) -> usize {
    d.div_ceil(STEP)
}

/// Bytes of a query of `d` elements as an operand.
pub(crate) const fn query_bytes(d: usize) -> usize {
    spread(PARTS * steps(d) * STEP * BF16)
}

/// Floats of scratch memory for rows of `d` elements and up to `n` queries.
pub(crate) const fn tile_scratch(d: usize, n: usize) -> usize {
    let rows = KEYS * d;
    let keys = PARTS * steps(d) * 2 * TILE_BYTES;
    let values = KEYS / STEP * 2 * TILE_BYTES + n.next_multiple_of(COLUMNS) * WEIGHTS;
    let packed = if keys > values { keys } else { values };
    rows + (packed + size_of::<TileSums>() + 2 * ALIGN) / size_of::<f32>()
}

/// The keys or values of a page.
#[derive(Clone, Copy)]
pub(crate) struct PageRows {
    pub rows: *const u8,
    /// Bytes from one row to the next.
    pub stride: usize,
    /// Rows, at most [`KEYS`].
    pub n: usize,
    /// Elements of a row.
    pub d: usize,
    pub dequantize: Dequantize,
}

/// Products of queries with the keys of a page.
pub(crate) struct TileScores {
    pub keys: PageRows,
    /// The keys that are wanted, by bits.
    pub wanted: u64,
    /// Rows as [`put_query`] writes them, a multiple of [`COLUMNS`] of them.
    pub queries: *const u8,
    pub n_queries: usize,
    /// [`KEYS`] floats to a query.
    pub out: *mut f32,
    /// [`tile_scratch`] floats.
    pub scratch: *mut f32,
}

/// Weighted sums of the values of a page.
pub(crate) struct TileValues {
    pub values: PageRows,
    /// The values that any query has seen, by bits; the others are not read.
    pub seen: u64,
    /// [`KEYS`] floats to a query.
    pub weights: *const f32,
    /// A factor for the sums of each query so far.
    pub factors: *const f32,
    pub n_queries: usize,
    /// Sums of the queries one after another.
    pub out: *mut f32,
    /// [`tile_scratch`] floats.
    pub scratch: *mut f32,
}

/// Scratch memory: rows as floats, packed operands, and sums.
struct Scratch {
    rows: *mut f32,
    packed: *mut u8,
    sums: *mut TileSums,
}

impl Scratch {
    /// # Safety
    /// `p` is valid for [`tile_scratch`] floats.
    unsafe fn new(p: *mut f32, d: usize) -> Scratch {
        // SAFETY: the caller's promise.
        unsafe {
            let sums = p.cast::<u8>();
            let sums = sums.add(sums.align_offset(ALIGN));
            let rows = sums.add(size_of::<TileSums>()).cast::<f32>();
            let packed = rows.add(KEYS * d).cast::<u8>();
            Scratch {
                rows,
                packed: packed.add(packed.align_offset(ALIGN)),
                sums: sums.cast(),
            }
        }
    }
}

/// `STEP` floats as what bfloat16 holds of them and what that leaves over.
type Split = [[u8; STEP * BF16]; 2];

/// Splits the `n` floats at `x`, at most [`STEP`]; further ones are zero.
///
/// # Safety
/// The CPU has the unit, `x` is valid for `n` floats.
#[inline(always)]
unsafe fn split<U: TileUnit>(x: *const f32, n: usize) -> Split {
    let (mut floats, mut parts) = ([0.0f32; STEP], [[0u8; STEP * BF16]; 2]);
    // SAFETY: the caller's promise; registers lie within the arrays.
    unsafe {
        if n == STEP {
            floats = x.cast::<[f32; STEP]>().read_unaligned();
        } else {
            x.copy_to_nonoverlapping(floats.as_mut_ptr(), n);
        }
        for i in (0..STEP).step_by(U::Float::LANES) {
            let x = U::Float::load(floats.as_ptr().add(i));
            U::store_bf16(x, parts[0].as_mut_ptr().add(i * BF16));
            let high = U::Float::load_bf16(parts[0].as_ptr().add(i * BF16));
            U::store_bf16(x.sub(high), parts[1].as_mut_ptr().add(i * BF16));
        }
    }
    parts
}

/// Writes a query of `d` elements as an operand, [`query_bytes`] long.
///
/// # Safety
/// The CPU has the unit, `x` is valid for `d` floats and `out` for the operand.
#[inline(always)]
pub(crate) unsafe fn put_query<U: TileUnit>(x: *const f32, d: usize, out: *mut u8) {
    let n = steps(d);
    for step in 0..n {
        // SAFETY: the caller's promise.
        unsafe {
            let [high, low] = split::<U>(x.add(step * STEP), STEP.min(d - step * STEP));
            for (part, bytes) in [high, high, low].into_iter().enumerate() {
                let to = out.add((part * n + step) * TILE_WIDTH);
                to.cast::<[u8; TILE_WIDTH]>().write_unaligned(bytes);
            }
        }
    }
}

/// Products of queries with keys.
///
/// # Safety
/// The CPU has the unit, no other is in use in this thread, and the pointers are valid for what the fields say.
#[inline(always)]
pub(crate) unsafe fn scores<U: TileUnit>(s: &TileScores) {
    let steps = steps(s.keys.d);
    let x_stride = query_bytes(s.keys.d);
    // SAFETY: the caller's promise; keys lie below `n`, queries below `n_queries` rounded up.
    unsafe {
        let mut unit = U::new();
        let scratch = Scratch::new(s.scratch, s.keys.d);
        for first in (0..s.keys.n).step_by(ROWS) {
            if s.wanted >> first & ((1 << ROWS) - 1) == 0 {
                continue;
            }
            pack_keys::<U>(&s.keys, first, &scratch);
            for q in (0..s.n_queries).step_by(COLUMNS) {
                unit.add(&TileBlock {
                    x: s.queries.add(q * x_stride),
                    x_stride,
                    w: scratch.packed,
                    steps: PARTS * steps,
                    sums: scratch.sums,
                    is_first: true,
                });
                let TileSums(sums) = &*scratch.sums;
                for column in 0..COLUMNS.min(s.n_queries - q) {
                    for half in 0..ROWS / TILE_ROWS {
                        let to = s.out.add((q + column) * KEYS + first + half * TILE_ROWS);
                        let sums = sums[column / TILE_ROWS][half][column % TILE_ROWS];
                        to.cast::<[f32; TILE_ROWS]>().write_unaligned(sums);
                    }
                }
            }
        }
    }
}

/// Packs [`ROWS`] keys from key `first` on. Those that there are not are zero.
///
/// # Safety
/// As for [`scores`].
#[inline(always)]
unsafe fn pack_keys<U: TileUnit>(keys: &PageRows, first: usize, scratch: &Scratch) {
    let (d, steps) = (keys.d, steps(keys.d));
    // SAFETY: the caller's promise; rows, steps and tiles lie within the operands.
    unsafe {
        for half in 0..ROWS / TILE_ROWS {
            let first = first + half * TILE_ROWS;
            let n = TILE_ROWS.min(keys.n.saturating_sub(first));
            for i in 0..n {
                (keys.dequantize)(keys.rows.add((first + i) * keys.stride), scratch.rows.add(i * d), d);
            }
            for step in 0..steps {
                let mut parts = [[[0u8; TILE_WIDTH]; TILE_ROWS]; 2];
                for i in 0..n {
                    let row = scratch.rows.add(i * d + step * STEP);
                    let [high, low] = split::<U>(row, STEP.min(d - step * STEP));
                    parts[0][i] = high;
                    parts[1][i] = low;
                }
                for (part, from) in [0, 1, 0].into_iter().enumerate() {
                    let to = scratch.packed.add(((part * steps + step) * 2 + half) * TILE_BYTES);
                    transpose::<U::Float>(parts[from].as_ptr().cast(), to.cast());
                }
            }
        }
    }
}

/// Adds weighted values to the sums of queries: `out[q] = factor[q] out[q] + sum_i weight[q][i] values[i]`. False, with the sums as they were, if a value is not
/// finite: times a weight of zero it would not be zero.
///
/// # Safety
/// As for [`scores`].
#[inline(always)]
pub(crate) unsafe fn values<U: TileUnit>(v: &TileValues) -> bool {
    // SAFETY: the caller's promise; columns lie below `d`, queries below `n_queries` or, of weights, below that rounded up.
    unsafe {
        let scratch = Scratch::new(v.scratch, v.values.d);
        if !read_values::<U::Float>(&v.values, v.seen, scratch.rows) {
            return false;
        }
        let mut unit = U::new();
        let weights = scratch.packed.add(KEYS / STEP * 2 * TILE_BYTES);
        put_weights::<U>(v, weights);
        for c in (0..v.values.d).step_by(ROWS) {
            pack_values::<U>(&v.values, c, &scratch);
            for q in (0..v.n_queries).step_by(COLUMNS) {
                unit.add(&TileBlock {
                    x: weights.add(q * WEIGHTS),
                    x_stride: WEIGHTS,
                    w: scratch.packed,
                    steps: KEYS / STEP,
                    sums: scratch.sums,
                    is_first: true,
                });
                add_sums::<U::Float>(v, c, q, &*scratch.sums);
            }
        }
    }
    true
}

/// Reads the values that are seen as floats, the others as zero. False if one is not finite.
///
/// # Safety
/// As for [`values`]; `to` is valid for [`KEYS`] rows.
#[inline(always)]
unsafe fn read_values<V: Simd>(values: &PageRows, seen: u64, to: *mut f32) -> bool {
    let d = values.d;
    // SAFETY: the caller's promise.
    unsafe {
        // A sum of zeros, unless something is not finite.
        let mut zeros = V::splat(0.0);
        for i in 0..KEYS {
            let row = to.add(i * d);
            if seen >> i & 1 == 0 {
                row.write_bytes(0, d);
                continue;
            }
            (values.dequantize)(values.rows.add(i * values.stride), row, d);
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

/// Writes the weights as rows of bfloat16. Those of queries that only fill up tiles are not set: their sums are dropped.
///
/// # Safety
/// As for [`values`]; `to` is valid for the rows.
#[inline(always)]
unsafe fn put_weights<U: TileUnit>(v: &TileValues, to: *mut u8) {
    for i in (0..v.n_queries * KEYS).step_by(U::Float::LANES) {
        // SAFETY: the caller's promise.
        unsafe { U::store_bf16(U::Float::load(v.weights.add(i)), to.add(i * BF16)) }
    }
}

/// Packs [`ROWS`] columns of the values from column `c` on. Columns that there are not are zero.
///
/// # Safety
/// As for [`values`]; the values were read.
#[inline(always)]
unsafe fn pack_values<U: TileUnit>(values: &PageRows, c: usize, scratch: &Scratch) {
    let d = values.d;
    for pair in 0..KEYS / 2 {
        let mut rows = [[0.0f32; ROWS]; 2];
        for (odd, row) in rows.iter_mut().enumerate() {
            // SAFETY: the caller's promise: columns below `d`.
            unsafe {
                let from = scratch.rows.add((2 * pair + odd) * d + c);
                if c + ROWS <= d {
                    *row = from.cast::<[f32; ROWS]>().read_unaligned();
                } else {
                    from.copy_to_nonoverlapping(row.as_mut_ptr(), d - c);
                }
            }
        }
        let (step, row) = (pair / TILE_ROWS, pair % TILE_ROWS);
        for at in (0..ROWS).step_by(U::Float::LANES) {
            let (half, lane) = (at / TILE_ROWS, at % TILE_ROWS);
            // SAFETY: the caller's promise: registers within the rows and a tile.
            unsafe {
                let to = (step * 2 + half) * TILE_BYTES + row * TILE_WIDTH + lane * 2 * BF16;
                let (even, odd) = (
                    U::Float::load(rows[0].as_ptr().add(at)),
                    U::Float::load(rows[1].as_ptr().add(at)),
                );
                U::store_bf16_pairs(even, odd, scratch.packed.add(to));
            }
        }
    }
}

/// Adds sums to those of the queries from `q` on, columns from `c` on.
///
/// # Safety
/// As for [`values`].
#[inline(always)]
unsafe fn add_sums<V: Simd>(v: &TileValues, c: usize, q: usize, TileSums(sums): &TileSums) {
    let d = v.values.d;
    for column in 0..COLUMNS.min(v.n_queries - q) {
        // SAFETY: the caller's promise; columns lie below `d`.
        unsafe {
            let factor = V::splat(*v.factors.add(q + column));
            for at in (0..ROWS.min(d - c)).step_by(V::LANES) {
                let sums = &sums[column / TILE_ROWS][at / TILE_ROWS][column % TILE_ROWS];
                let sum = V::load(sums.as_ptr().add(at % TILE_ROWS));
                let out = v.out.add((q + column) * d + c + at);
                let n = d - c - at;
                if n >= V::LANES {
                    V::load(out).mul_add(factor, sum).store(out);
                } else {
                    V::load_partial(out, n).mul_add(factor, sum).store_partial(out, n);
                }
            }
        }
    }
}
