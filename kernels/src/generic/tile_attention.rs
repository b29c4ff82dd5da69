//! Attention of many queries to a page by a unit that multiplies tiles: products with keys, and weighted sums of values.
//!
//! Queries and keys are two bfloat16 each, one for what the other leaves over: three of the four products are added up, and scores have some 16 bits.
//! Weights and values are one bfloat16.

use super::integers::spread;
use super::tile_packing::{Dequantize, transpose};
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

/// Bytes of the keys of a page as an operand, with room to align it: of each [`ROWS`] keys what [`PARTS`] need.
pub(crate) const fn key_bytes(d: usize) -> usize {
    KEYS / ROWS * bytes_of_keys(d) + ALIGN
}

/// Bytes of [`ROWS`] keys as an operand.
const fn bytes_of_keys(d: usize) -> usize {
    PARTS * steps(d) * 2 * TILE_BYTES
}

/// Bytes of the values of a page as an operand, with room to align it.
pub(crate) const fn value_bytes(d: usize) -> usize {
    d.div_ceil(ROWS) * BYTES_OF_VALUES + ALIGN
}

/// Bytes of [`ROWS`] columns of the values as an operand.
const BYTES_OF_VALUES: usize = KEYS / STEP * 2 * TILE_BYTES;

/// Floats of scratch memory for rows of `d` elements and up to `n` queries.
pub(crate) const fn tile_scratch(d: usize, n: usize) -> usize {
    let weights = n.next_multiple_of(COLUMNS) * WEIGHTS;
    KEYS * d + (weights + size_of::<TileSums>() + ALIGN) / size_of::<f32>()
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
    /// The rows that are wanted, by bits. Of keys further ones may be read, of values none.
    pub wanted: u64,
    /// The operand to write, aligned to 64 bytes: [`key_bytes`] or [`value_bytes`].
    pub out: *mut u8,
    /// [`tile_scratch`] floats.
    pub scratch: *mut f32,
}

/// Products of queries with the keys of a page.
pub(crate) struct TileScores {
    /// As [`put_keys`] writes them.
    pub keys: *const u8,
    /// Elements of a key.
    pub d: usize,
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
    /// As [`put_values`] writes them.
    pub values: *const u8,
    /// Elements of a value.
    pub d: usize,
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

/// Scratch memory: sums, weights as an operand, and rows as floats.
struct Scratch {
    sums: *mut TileSums,
    weights: *mut u8,
    rows: *mut f32,
}

impl Scratch {
    /// # Safety
    /// `p` is valid for [`tile_scratch`] floats of `n` queries.
    unsafe fn new(p: *mut f32, n: usize) -> Scratch {
        // SAFETY: the caller's promise.
        unsafe {
            let sums = p.cast::<u8>();
            let sums = sums.add(sums.align_offset(ALIGN));
            let weights = sums.add(size_of::<TileSums>());
            Scratch {
                sums: sums.cast(),
                weights,
                rows: weights.add(n.next_multiple_of(COLUMNS) * WEIGHTS).cast(),
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

/// Packs the keys of a page that are wanted, whole [`ROWS`] of them.
///
/// # Safety
/// The CPU has the unit, and the pointers are valid for what the fields say.
#[inline(always)]
pub(crate) unsafe fn put_keys<U: TileUnit>(keys: &PageRows) {
    // SAFETY: the caller's promise; keys lie below `n`.
    unsafe {
        let scratch = Scratch::new(keys.scratch, 0);
        for first in (0..keys.n).step_by(ROWS) {
            if of_rows(keys.wanted, first) != 0 {
                let to = keys.out.add(first / ROWS * bytes_of_keys(keys.d));
                pack_keys::<U>(keys, first, scratch.rows, to);
            }
        }
    }
}

/// The bits of [`ROWS`] keys from `first` on.
fn of_rows(bits: u64, first: usize) -> u64 {
    bits >> first & ((1 << ROWS) - 1)
}

/// Products of queries with keys.
///
/// # Safety
/// The CPU has the unit, no other is in use in this thread, and the pointers are valid for what the fields say.
#[inline(always)]
pub(crate) unsafe fn scores<U: TileUnit>(s: &TileScores) {
    let x_stride = query_bytes(s.d);
    // SAFETY: the caller's promise; keys lie below `KEYS`, queries below `n_queries` rounded up.
    unsafe {
        let mut unit = U::new();
        let sums = Scratch::new(s.scratch, 0).sums;
        for first in (0..KEYS).step_by(ROWS).filter(|&first| of_rows(s.wanted, first) != 0) {
            for q in (0..s.n_queries).step_by(COLUMNS) {
                let out = s.out.add(q * KEYS + first);
                let is_whole = q + COLUMNS <= s.n_queries;
                unit.add(&TileBlock {
                    x: s.queries.add(q * x_stride),
                    x_stride,
                    w: s.keys.add(first / ROWS * bytes_of_keys(s.d)),
                    streams: false,
                    steps: PARTS * steps(s.d),
                    sums: std::ptr::null(),
                    to: if is_whole { out } else { sums.cast() },
                    to_stride: if is_whole {
                        KEYS * size_of::<f32>()
                    } else {
                        TileSums::STRIDE
                    },
                });
                if !is_whole {
                    let TileSums(sums) = &*sums;
                    for (column, sums) in sums.iter().enumerate().take(s.n_queries - q) {
                        out.add(column * KEYS).cast::<[f32; ROWS]>().write_unaligned(*sums);
                    }
                }
            }
        }
    }
}

/// Packs [`ROWS`] keys from key `first` on. Those that there are not are zero. `rows` are [`TILE_ROWS`] rows of scratch memory.
///
/// # Safety
/// As for [`put_keys`].
#[inline(always)]
unsafe fn pack_keys<U: TileUnit>(keys: &PageRows, first: usize, rows: *mut f32, to: *mut u8) {
    let (d, steps) = (keys.d, steps(keys.d));
    // SAFETY: the caller's promise; rows, steps and tiles lie within the operands.
    unsafe {
        for half in 0..ROWS / TILE_ROWS {
            let first = first + half * TILE_ROWS;
            let n = TILE_ROWS.min(keys.n.saturating_sub(first));
            for i in 0..n {
                (keys.dequantize)(keys.rows.add((first + i) * keys.stride), rows.add(i * d), d);
            }
            for step in 0..steps {
                let mut parts = [[[0u8; TILE_WIDTH]; TILE_ROWS]; 2];
                for i in 0..n {
                    let row = rows.add(i * d + step * STEP);
                    let [high, low] = split::<U>(row, STEP.min(d - step * STEP));
                    parts[0][i] = high;
                    parts[1][i] = low;
                }
                let tile = |part: usize| to.add(((part * steps + step) * 2 + half) * TILE_BYTES);
                for (part, rows) in parts.iter().enumerate() {
                    transpose::<U::Float>(rows.as_ptr().cast(), tile(part).cast());
                }
                tile(2).copy_from_nonoverlapping(tile(0), TILE_BYTES);
            }
        }
    }
}

/// Packs the values of a page, zeros for those that are not wanted. False if one is not finite: times a weight of zero it would not be zero.
///
/// # Safety
/// As for [`put_keys`].
#[inline(always)]
pub(crate) unsafe fn put_values<U: TileUnit>(values: &PageRows) -> bool {
    // SAFETY: the caller's promise; columns lie below `d`.
    unsafe {
        let rows = Scratch::new(values.scratch, 0).rows;
        if !read_values::<U::Float>(values, rows) {
            return false;
        }
        for c in (0..values.d).step_by(ROWS) {
            pack_values::<U>(rows, values.d, c, values.out.add(c / ROWS * BYTES_OF_VALUES));
        }
    }
    true
}

/// Adds weighted values to the sums of queries: `out[q] = factor[q] out[q] + sum_i weight[q][i] values[i]`.
///
/// # Safety
/// As for [`scores`].
#[inline(always)]
pub(crate) unsafe fn values<U: TileUnit>(v: &TileValues) {
    // SAFETY: the caller's promise; columns lie below `d`, queries below `n_queries` or, of weights, below that rounded up.
    unsafe {
        let scratch = Scratch::new(v.scratch, v.n_queries);
        let mut unit = U::new();
        put_weights::<U>(v, scratch.weights);
        for c in (0..v.d).step_by(ROWS) {
            for q in (0..v.n_queries).step_by(COLUMNS) {
                unit.add(&TileBlock {
                    x: scratch.weights.add(q * WEIGHTS),
                    x_stride: WEIGHTS,
                    w: v.values.add(c / ROWS * BYTES_OF_VALUES),
                    streams: false,
                    steps: KEYS / STEP,
                    sums: std::ptr::null(),
                    to: scratch.sums.cast(),
                    to_stride: TileSums::STRIDE,
                });
                add_sums::<U::Float>(v, c, q, &*scratch.sums);
            }
        }
    }
}

/// Reads the values that are wanted as floats, the others as zero. False if one is not finite.
///
/// # Safety
/// As for [`put_values`]; `to` is valid for [`KEYS`] rows.
#[inline(always)]
unsafe fn read_values<V: Simd>(values: &PageRows, to: *mut f32) -> bool {
    let d = values.d;
    // SAFETY: the caller's promise.
    unsafe {
        // A sum of zeros, unless something is not finite.
        let mut zeros = V::splat(0.0);
        for i in 0..KEYS {
            let row = to.add(i * d);
            if values.wanted >> i & 1 == 0 {
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

/// Packs [`ROWS`] columns of the rows of values, of `d` floats, from column `c` on. Columns that there are not are zero.
///
/// # Safety
/// As for [`put_values`].
#[inline(always)]
unsafe fn pack_values<U: TileUnit>(values: *const f32, d: usize, c: usize, out: *mut u8) {
    for pair in 0..KEYS / 2 {
        let mut rows = [[0.0f32; ROWS]; 2];
        for (odd, row) in rows.iter_mut().enumerate() {
            // SAFETY: the caller's promise: columns below `d`.
            unsafe {
                let from = values.add((2 * pair + odd) * d + c);
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
                U::store_bf16_pairs(even, odd, out.add(to));
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
    let d = v.d;
    for column in 0..COLUMNS.min(v.n_queries - q) {
        // SAFETY: the caller's promise; columns lie below `d`.
        unsafe {
            let factor = V::splat(*v.factors.add(q + column));
            for at in (0..ROWS.min(d - c)).step_by(V::LANES) {
                let sum = V::load(sums[column].as_ptr().add(at));
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
