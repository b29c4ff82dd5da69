//! Attention of many queries to several pages in bf16 tiles, for a unit such as AMX.
//!
//! Each element of a query or key is split into two bf16: the rounded value and the residual. Three of the
//! four products are added, which gives scores of about 16 bits. Weights and values are single bf16.
//!
//! ```text
//! split(x):  high = bf16(x), low = bf16(x - high)
//! score   =  q.high * k.high + q.high * k.low + q.low * k.high
//!
//! prepare once per page, for all queries:     keys and values packed as tiles
//! for 32 queries:
//!     for 32 keys of all pages:  scores  = tiles(queries) x tiles(keys)
//!     online softmax over all pages          # weights are stored as bf16
//!     for 32 columns of values:  sums    = tiles(weights) x tiles(values)
//!                                out     = out * factor + sums
//! ```

use std::marker::PhantomData;

use super::attention::{Softmax, StoreWeights, softmax_step};
use super::functions::ExpApprox16;
use super::integers::spread;
use super::tile_packing::{Dequantize, transpose};
use crate::limits::KEYS;
use crate::simd::tiles::{BF16, COLUMNS, ROWS, STEP, TILE_BYTES, TILE_ROWS, TILE_WIDTH, TileBlock, TileSums};
use crate::simd::{Simd, TileUnit};

/// bf16 numbers per element of a query or key.
const PARTS: usize = 2;

/// Alignment of operands in bytes.
const ALIGN: usize = 64;

const _: () = assert!(KEYS == 2 * ROWS && ROWS == STEP);

/// Returns the number of tile widths that `d` elements fill.
const fn steps(d: usize) -> usize {
    d.div_ceil(STEP)
}

/// Returns the size in bytes of a packed query of `d` elements.
pub(crate) const fn query_bytes(d: usize) -> usize {
    spread(PARTS * steps(d) * STEP * BF16)
}

/// Returns the size in bytes of a page of packed keys of `d` elements.
pub(crate) const fn key_bytes(d: usize) -> usize {
    KEYS / ROWS * packed_rows_bytes(d)
}

/// Returns the size in bytes of [`ROWS`] packed keys.
const fn packed_rows_bytes(d: usize) -> usize {
    PARTS * steps(d) * 2 * TILE_BYTES
}

/// Returns the size in bytes of a page of packed values. The same columns of all pages are contiguous.
pub(crate) const fn value_bytes(d: usize) -> usize {
    d.div_ceil(ROWS) * COLUMN_BYTES
}

/// Size in bytes of [`ROWS`] columns of a page of packed values.
const COLUMN_BYTES: usize = KEYS / STEP * 2 * TILE_BYTES;

/// Returns the distance in floats between the scores of two queries for `n_pages` pages.
pub const fn score_stride(n_pages: usize) -> usize {
    spread(n_pages * KEYS * size_of::<f32>()) / size_of::<f32>()
}

/// Returns the distance in bytes between the weights of two queries for `n_pages` pages.
pub(crate) const fn weight_stride(n_pages: usize) -> usize {
    spread(n_pages * PAGE_WEIGHT_BYTES)
}

/// Size in bytes of a query's weights for a page.
const PAGE_WEIGHT_BYTES: usize = KEYS * BF16;

/// Returns the scratch memory in floats for rows of `d` elements.
pub(crate) const fn tile_scratch(d: usize) -> usize {
    KEYS * d + (size_of::<TileSums>() + ALIGN) / size_of::<f32>()
}

/// The keys or values of a page, and the destination of the packed operand.
#[derive(Clone, Copy)]
pub(crate) struct PageRows {
    pub rows: *const u8,
    /// Distance between rows in bytes.
    pub stride: usize,
    /// Number of rows, at most [`KEYS`].
    pub n: usize,
    /// Number of elements per row.
    pub d: usize,
    pub dequantize: Dequantize,
    /// Bit mask of the rows to pack. Other keys may be read; other values are not.
    pub mask: u64,
    /// Packed operand, aligned to 64 bytes, with [`key_bytes`] or [`value_bytes`] per page.
    pub out: *mut u8,
    /// Number of pages of the operand, and the index of this page.
    pub n_pages: usize,
    pub page: usize,
    /// Scratch memory of [`tile_scratch`] floats.
    pub scratch: *mut f32,
}

/// Operands for the scores of queries with the keys of some pages.
pub(crate) struct TileScores {
    /// Keys packed by [`pack_keys`], page after page.
    pub keys: *const u8,
    /// Number of elements per key.
    pub d: usize,
    pub n_pages: usize,
    /// Bit mask of the keys to score, one word per page.
    pub mask: *const u64,
    /// Queries packed by [`pack_query`], a multiple of [`COLUMNS`].
    pub queries: *const u8,
    pub n_queries: usize,
    /// Scores, [`score_stride`] floats per query, for a multiple of [`COLUMNS`] queries.
    pub out: *mut f32,
}

/// Operands for a step of the online softmax over some pages.
pub(crate) struct TileWeights {
    /// Softmax state. Its pages are the processed pages; its weights are rows for all pages.
    pub softmax: Softmax,
    /// Number of pages of the operand, and the first processed page.
    pub n_pages: usize,
    pub first: usize,
    /// Values packed by [`pack_values`], with `d` elements each. Integer weights include their scales.
    pub values: *const u8,
    pub d: usize,
}

/// Operands for the weighted sums of the values of some pages.
pub(crate) struct TileValues {
    /// Values packed by [`pack_values`].
    pub values: *const u8,
    /// Number of pages of the operands, the first page to add, and the number of pages to add.
    pub n_pages: usize,
    pub first: usize,
    pub n: usize,
    /// Number of elements per value.
    pub d: usize,
    /// Weights, [`weight_stride`] bytes per query, for a multiple of [`COLUMNS`] queries.
    pub weights: *const u8,
    /// Factor for the earlier sums of each query.
    pub factors: *const f32,
    pub n_queries: usize,
    /// Sums of the queries, stored contiguously.
    pub out: *mut f32,
    /// Scratch memory of [`tile_scratch`] floats.
    pub scratch: *mut f32,
}

/// Pointers into the scratch memory: sums, and rows as floats.
struct Scratch {
    sums: *mut TileSums,
    rows: *mut f32,
}

impl Scratch {
    /// # Safety
    /// `p` is valid for [`tile_scratch`] floats.
    unsafe fn new(p: *mut f32) -> Scratch {
        // SAFETY: after alignment, both parts fit in `tile_scratch` floats (function contract).
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

/// `STEP` floats as bf16, followed by their residuals as bf16.
type Split = [[u8; STEP * BF16]; 2];

/// Splits the `n <= STEP` floats at `x`. Elements beyond `n` are zero.
///
/// # Safety
/// - The CPU supports `U`.
/// - `x` is valid for reads of `n` floats.
#[inline(always)]
unsafe fn split<U: TileUnit>(x: *const f32, n: usize) -> Split {
    let (mut floats, mut parts) = ([0.0f32; STEP], [[0u8; STEP * BF16]; 2]);
    // SAFETY: `n` floats are readable (function contract), and registers are within the arrays.
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

/// Packs a query of `d` elements into [`query_bytes`] bytes.
///
/// # Safety
/// - The CPU supports `U`.
/// - `x` is valid for reads of `d` floats, and `out` for writes of [`query_bytes`] bytes.
#[inline(always)]
pub(crate) unsafe fn pack_query<U: TileUnit>(x: *const f32, d: usize, out: *mut u8) {
    for step in 0..steps(d) {
        // SAFETY: steps end at `d`, and `out` has two tile rows for each (function contract).
        unsafe {
            let parts = split::<U>(x.add(step * STEP), STEP.min(d - step * STEP));
            let to = out.add(PARTS * step * TILE_WIDTH);
            to.cast::<Split>().write_unaligned(parts);
        }
    }
}

/// Packs the keys of a page in groups of [`ROWS`], skipping groups without a set bit in `mask`. Always
/// returns true, because bf16 can represent non-finite keys.
///
/// # Safety
/// - The CPU supports `U`.
/// - The pointers in `keys` are valid for the sizes given by its fields.
#[inline(always)]
pub(crate) unsafe fn pack_keys<U: TileUnit>(keys: &PageRows) -> bool {
    // SAFETY: `first < keys.n`, and `out` has [`key_bytes`] bytes per page (function contract).
    unsafe {
        let scratch = Scratch::new(keys.scratch);
        let out = keys.out.add(keys.page * key_bytes(keys.d));
        for first in (0..keys.n).step_by(ROWS) {
            if key_bits(keys.mask, first) != 0 {
                let to = out.add(first / ROWS * packed_rows_bytes(keys.d));
                pack_key_rows::<U>(keys, first, scratch.rows, to);
            }
        }
    }
    true
}

/// Returns the bits of [`ROWS`] keys starting at `first`.
fn key_bits(bits: u64, first: usize) -> u64 {
    bits >> first & ((1 << ROWS) - 1)
}

/// Computes the scores of queries with keys, skipping groups of [`ROWS`] keys without a set bit in `mask`.
///
/// # Safety
/// - The CPU supports `U`, and no other tile unit is active in this thread.
/// - The pointers in `s` are valid for the sizes given by its fields.
#[inline(always)]
pub(crate) unsafe fn scores<U: TileUnit>(s: &TileScores) {
    let (x_stride, stride) = (query_bytes(s.d), score_stride(s.n_pages));
    // SAFETY: keys end at `KEYS` of the last page, and queries at `n_queries` rounded up to `COLUMNS`
    // (function contract).
    unsafe {
        let mut unit = U::new();
        for q in (0..s.n_queries).step_by(COLUMNS) {
            for at in (0..s.n_pages * KEYS).step_by(ROWS) {
                if key_bits(*s.mask.add(at / KEYS), at % KEYS) == 0 {
                    continue;
                }
                let (x, w) = (
                    s.queries.add(q * x_stride),
                    s.keys.add(at / ROWS * packed_rows_bytes(s.d)),
                );
                unit.begin(std::ptr::null());
                for step in 0..steps(s.d) {
                    unit.step_split(
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

/// Stores weights as rows of bf16.
struct Rounded<U>(PhantomData<U>);

impl<U: TileUnit> StoreWeights<U::Float> for Rounded<U> {
    type Exp = ExpApprox16;

    #[inline(always)]
    unsafe fn store(weights: U::Float, _: *mut f32, row: *mut u8, i: usize) {
        // SAFETY: `row` is valid for writes of the weights starting at `i` (function contract).
        unsafe { U::store_bf16(weights, row.add(i * BF16)) }
    }
}

/// Performs a step of the online softmax. Its weights are an operand of [`values`].
///
/// # Safety
/// - The CPU supports `U`.
/// - The pointers in `w` are valid for the sizes given by its fields.
#[inline(always)]
pub(crate) unsafe fn weights<U: TileUnit>(w: &TileWeights) {
    let softmax = Softmax {
        weights: w.softmax.weights.wrapping_add(w.first * PAGE_WEIGHT_BYTES),
        ..w.softmax
    };
    // SAFETY: the pages `first..first + n_pages` of the softmax are part of the operand (function contract).
    unsafe { softmax_step::<U::Float, Rounded<U>>(&softmax) }
}

/// Packs [`ROWS`] keys starting at key `first`. Missing keys are zero. `rows` is scratch memory for [`TILE_ROWS`] rows.
///
/// # Safety
/// - The CPU supports `U`.
/// - The pointers in `keys` are valid for the sizes given by its fields, and `to` for [`ROWS`] packed keys.
#[inline(always)]
unsafe fn pack_key_rows<U: TileUnit>(keys: &PageRows, first: usize, rows: *mut f32, to: *mut u8) {
    let (d, steps) = (keys.d, steps(keys.d));
    // SAFETY: rows are below `keys.n`, elements below `d`, and tiles within `to` (function contract).
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

/// Packs the values of a page, with zeros for rows whose bit in `mask` is clear. Returns false if a value
/// is not finite: multiplied by a weight of zero, it would not yield zero.
///
/// # Safety
/// - The CPU supports `U`.
/// - The pointers in `values` are valid for the sizes given by its fields.
#[inline(always)]
pub(crate) unsafe fn pack_values<U: TileUnit>(values: &PageRows) -> bool {
    // SAFETY: columns end at `values.d`, and `out` has [`value_bytes`] bytes per page (function contract).
    unsafe {
        let rows = Scratch::new(values.scratch).rows;
        if !read_values::<U::Float>(values, rows) {
            return false;
        }
        for c in (0..values.d).step_by(ROWS) {
            let at = (c / ROWS * values.n_pages + values.page) * COLUMN_BYTES;
            pack_value_columns::<U>(rows, values.d, c, values.out.add(at));
        }
    }
    true
}

/// Adds weighted values to the sums of queries: `out[q] = factor[q] * out[q] + sum_i weight[q][i] *
/// values[i]`.
///
/// # Safety
/// - The CPU supports `U`, and no other tile unit is active in this thread.
/// - The pointers in `v` are valid for the sizes given by its fields.
#[inline(always)]
pub(crate) unsafe fn values<U: TileUnit>(v: &TileValues) {
    let x_stride = weight_stride(v.n_pages);
    // SAFETY: columns end at `v.d`, sums at `n_queries`, and weights at `n_queries` rounded up to `COLUMNS`
    // (function contract).
    unsafe {
        let sums = Scratch::new(v.scratch).sums;
        let mut unit = U::new();
        for q in (0..v.n_queries).step_by(COLUMNS) {
            for c in (0..v.d).step_by(ROWS) {
                unit.add(&TileBlock {
                    columns: COLUMNS,
                    x: v.weights.add(q * x_stride + v.first * PAGE_WEIGHT_BYTES),
                    x_stride,
                    w: v.values.add((c / ROWS * v.n_pages + v.first) * COLUMN_BYTES),
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

/// Converts values to floats, with zeros for rows whose bit in `mask` is clear. Returns false if a value is
/// not finite.
///
/// # Safety
/// - The CPU supports `V`.
/// - The pointers in `values` are valid for the sizes given by its fields, and `to` for writes of [`KEYS`]
///   rows.
#[inline(always)]
pub(super) unsafe fn read_values<V: Simd>(values: &PageRows, to: *mut f32) -> bool {
    let d = values.d;
    // SAFETY: rows with a set bit are readable, and `to` has [`KEYS`] rows (function contract).
    unsafe {
        // Remains 0 unless an element is not finite.
        let mut zeros = V::splat(0.0);
        for i in 0..KEYS {
            let row = to.add(i * d);
            if values.mask >> i & 1 == 0 {
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

/// Packs [`ROWS`] columns of the values starting at column `c`. Missing columns are zero. Rows have `d` floats.
///
/// # Safety
/// - The CPU supports `U`.
/// - `values` is valid for reads of [`KEYS`] rows, and `out` for writes of [`ROWS`] packed columns.
#[inline(always)]
unsafe fn pack_value_columns<U: TileUnit>(values: *const f32, d: usize, c: usize, out: *mut u8) {
    for pair in 0..KEYS / 2 {
        let mut rows = [[0.0f32; ROWS]; 2];
        for (odd, row) in rows.iter_mut().enumerate() {
            // SAFETY: columns end at `d` (function contract).
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
            // SAFETY: the register is within `rows` and the pair of rows within a tile (function contract).
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

/// Adds sums to the output: queries starting at `q`, columns starting at `c`.
///
/// # Safety
/// - The CPU supports `V`.
/// - The pointers in `v` are valid for the sizes given by its fields, `q < v.n_queries`, and `c < v.d`.
#[inline(always)]
unsafe fn add_sums<V: Simd>(v: &TileValues, c: usize, q: usize, TileSums(sums): &TileSums) {
    let d = v.d;
    for column in 0..COLUMNS.min(v.n_queries - q) {
        // SAFETY: columns end at `v.d` and queries at `v.n_queries` (function contract).
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
