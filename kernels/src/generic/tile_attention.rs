//! Attention of many queries to some pages by a unit that multiplies tiles: products with keys, a step of the online softmax, and weighted sums of values.
//!
//! Queries and keys are two bfloat16 each, one for what the other leaves over: three of the four products are added up, and scores have some 16 bits.
//! Weights and values are one bfloat16.

use std::marker::PhantomData;

use super::attention::{PutWeights, Softmax, softmax_step};
use super::functions::ExpOf16Bits;
use super::integers::spread;
use super::tile_packing::{Dequantize, transpose};
use crate::attention::KEYS;
use crate::simd::tiles::{COLUMNS, ROWS, STEP, TILE_BYTES, TILE_ROWS, TILE_WIDTH, TileBlock, TileSums};
use crate::simd::{Simd, TileUnit};

/// Numbers that an element of a query or of a key is.
const PARTS: usize = 2;

/// Bytes of a bfloat16.
const BF16: usize = 2;

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

/// Bytes of the keys of a page as an operand.
pub(crate) const fn key_bytes(d: usize) -> usize {
    KEYS / ROWS * bytes_of_keys(d)
}

/// Bytes of [`ROWS`] keys as an operand.
const fn bytes_of_keys(d: usize) -> usize {
    PARTS * steps(d) * 2 * TILE_BYTES
}

/// Bytes of the values of a page as an operand: those of the same columns of all pages lie side by side.
pub(crate) const fn value_bytes(d: usize) -> usize {
    d.div_ceil(ROWS) * BYTES_OF_VALUES
}

/// Bytes of [`ROWS`] columns of the values of a page as an operand.
const BYTES_OF_VALUES: usize = KEYS / STEP * 2 * TILE_BYTES;

/// Floats from the scores of a query with `n_pages` to those of the next.
pub const fn score_stride(n_pages: usize) -> usize {
    spread(n_pages * KEYS * size_of::<f32>()) / size_of::<f32>()
}

/// Bytes from the weights of a query for `n_pages` to those of the next.
pub(crate) const fn weight_stride(n_pages: usize) -> usize {
    spread(n_pages * BYTES_OF_WEIGHTS)
}

/// Bytes of the weights of a query for a page.
const BYTES_OF_WEIGHTS: usize = KEYS * BF16;

/// Floats of scratch memory for rows of `d` elements.
pub(crate) const fn tile_scratch(d: usize) -> usize {
    KEYS * d + (size_of::<TileSums>() + ALIGN) / size_of::<f32>()
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
    /// The operand to write, aligned to 64 bytes: [`key_bytes`] or [`value_bytes`] for each page.
    pub out: *mut u8,
    /// Its pages, and which of them this is.
    pub n_pages: usize,
    pub page: usize,
    /// [`tile_scratch`] floats.
    pub scratch: *mut f32,
}

/// Products of queries with the keys of some pages.
pub(crate) struct TileScores {
    /// As [`put_keys`] writes them, page after page.
    pub keys: *const u8,
    /// Elements of a key.
    pub d: usize,
    pub n_pages: usize,
    /// The keys that are wanted, by bits, a word for each page.
    pub wanted: *const u64,
    /// Rows as [`put_query`] writes them, a multiple of [`COLUMNS`] of them.
    pub queries: *const u8,
    pub n_queries: usize,
    /// [`score_stride`] floats to a query, for a multiple of [`COLUMNS`] of them.
    pub out: *mut f32,
}

/// A step of the online softmax with the scores of some pages.
pub(crate) struct TileWeights {
    /// Its pages are those that are looked at; its weights are rows of all pages.
    pub softmax: Softmax,
    /// Pages of the operand, and the first that is looked at.
    pub n_pages: usize,
    pub first: usize,
}

/// Weighted sums of the values of some pages.
pub(crate) struct TileValues {
    /// As [`put_values`] writes them.
    pub values: *const u8,
    /// Pages of the operands, the first that is added, and how many are.
    pub n_pages: usize,
    pub first: usize,
    pub n: usize,
    /// Elements of a value.
    pub d: usize,
    /// [`weight_stride`] bytes to a query, for a multiple of [`COLUMNS`] of them.
    pub weights: *const u8,
    /// A factor for the sums of each query so far.
    pub factors: *const f32,
    pub n_queries: usize,
    /// Sums of the queries one after another.
    pub out: *mut f32,
    /// [`tile_scratch`] floats.
    pub scratch: *mut f32,
}

/// Scratch memory: sums, and rows as floats.
struct Scratch {
    sums: *mut TileSums,
    rows: *mut f32,
}

impl Scratch {
    /// # Safety
    /// `p` is valid for [`tile_scratch`] floats.
    unsafe fn new(p: *mut f32) -> Scratch {
        // SAFETY: the caller's promise.
        unsafe {
            let sums = p.cast::<u8>();
            let sums = sums.add(sums.align_offset(ALIGN));
            Scratch {
                sums: sums.cast(),
                rows: sums.add(size_of::<TileSums>()).cast(),
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
    for step in 0..steps(d) {
        // SAFETY: the caller's promise.
        unsafe {
            let parts = split::<U>(x.add(step * STEP), STEP.min(d - step * STEP));
            let to = out.add(PARTS * step * TILE_WIDTH);
            to.cast::<Split>().write_unaligned(parts);
        }
    }
}

/// Packs the keys of a page that are wanted, whole [`ROWS`] of them. True: they may be infinite.
///
/// # Safety
/// The CPU has the unit, and the pointers are valid for what the fields say.
#[inline(always)]
pub(crate) unsafe fn put_keys<U: TileUnit>(keys: &PageRows) -> bool {
    // SAFETY: the caller's promise; keys lie below `n`.
    unsafe {
        let scratch = Scratch::new(keys.scratch);
        let out = keys.out.add(keys.page * key_bytes(keys.d));
        for first in (0..keys.n).step_by(ROWS) {
            if of_rows(keys.wanted, first) != 0 {
                let to = out.add(first / ROWS * bytes_of_keys(keys.d));
                pack_keys::<U>(keys, first, scratch.rows, to);
            }
        }
    }
    true
}

/// The bits of [`ROWS`] keys from `first` on.
fn of_rows(bits: u64, first: usize) -> u64 {
    bits >> first & ((1 << ROWS) - 1)
}

/// Products of queries with keys. Those with keys of which none is wanted are left out.
///
/// # Safety
/// The CPU has the unit, no other is in use in this thread, and the pointers are valid for what the fields say.
#[inline(always)]
pub(crate) unsafe fn scores<U: TileUnit>(s: &TileScores) {
    let (x_stride, stride) = (query_bytes(s.d), score_stride(s.n_pages));
    // SAFETY: the caller's promise; keys lie below `KEYS` of each page, queries below `n_queries` rounded up.
    unsafe {
        let mut unit = U::new();
        for q in (0..s.n_queries).step_by(COLUMNS) {
            for at in (0..s.n_pages * KEYS).step_by(ROWS) {
                if of_rows(*s.wanted.add(at / KEYS), at % KEYS) == 0 {
                    continue;
                }
                let (x, w) = (s.queries.add(q * x_stride), s.keys.add(at / ROWS * bytes_of_keys(s.d)));
                unit.begin(std::ptr::null());
                for step in 0..steps(s.d) {
                    unit.step_of_parts(
                        x.add(step * PARTS * TILE_WIDTH),
                        x_stride,
                        w.add(step * PARTS * 2 * TILE_BYTES),
                    );
                }
                unit.end(s.out.add(q * stride + at), stride * size_of::<f32>());
            }
        }
    }
}

/// Weights as rows of bfloat16.
struct Rounded<U>(PhantomData<U>);

impl<U: TileUnit> PutWeights<U::Float> for Rounded<U> {
    type Exp = ExpOf16Bits;

    #[inline(always)]
    unsafe fn put(weights: U::Float, _: *mut f32, row: *mut u8, i: usize) {
        // SAFETY: the caller's promise.
        unsafe { U::store_bf16(weights, row.add(i * BF16)) }
    }
}

/// A step of the online softmax, whose weights are an operand of [`values`].
///
/// # Safety
/// As for [`softmax_step`].
#[inline(always)]
pub(crate) unsafe fn weights<U: TileUnit>(w: &TileWeights) {
    let softmax = Softmax {
        weights: w.softmax.weights.wrapping_add(w.first * BYTES_OF_WEIGHTS),
        ..w.softmax
    };
    // SAFETY: the caller's promise.
    unsafe { softmax_step::<U::Float, Rounded<U>>(&softmax) }
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
                for (part, rows) in parts.iter().enumerate() {
                    let tile = to.add(((step * PARTS + part) * 2 + half) * TILE_BYTES);
                    transpose::<U::Float>(rows.as_ptr().cast(), tile.cast());
                }
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
        let rows = Scratch::new(values.scratch).rows;
        if !read_values::<U::Float>(values, rows) {
            return false;
        }
        for c in (0..values.d).step_by(ROWS) {
            let at = (c / ROWS * values.n_pages + values.page) * BYTES_OF_VALUES;
            pack_values::<U>(rows, values.d, c, values.out.add(at));
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
    let x_stride = weight_stride(v.n_pages);
    // SAFETY: the caller's promise; columns lie below `d`, queries below `n_queries` or, of weights, below that rounded up.
    unsafe {
        let sums = Scratch::new(v.scratch).sums;
        let mut unit = U::new();
        for q in (0..v.n_queries).step_by(COLUMNS) {
            for c in (0..v.d).step_by(ROWS) {
                unit.add(&TileBlock {
                    x: v.weights.add(q * x_stride + v.first * BYTES_OF_WEIGHTS),
                    x_stride,
                    w: v.values.add((c / ROWS * v.n_pages + v.first) * BYTES_OF_VALUES),
                    streams: false,
                    steps: v.n * (KEYS / STEP),
                    sums: std::ptr::null(),
                    to: sums.cast(),
                    to_stride: TileSums::STRIDE,
                });
                add_sums::<U::Float>(v, c, q, &*sums);
            }
        }
    }
}

/// Reads the values that are wanted as floats, the others as zero. False if one is not finite.
///
/// # Safety
/// As for [`put_values`]; `to` is valid for [`KEYS`] rows.
#[inline(always)]
pub(super) unsafe fn read_values<V: Simd>(values: &PageRows, to: *mut f32) -> bool {
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
