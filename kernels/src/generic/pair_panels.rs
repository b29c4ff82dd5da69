//! GEMM of 16-bit floats with activations as 16-bit integers, for many columns.
//!
//! A dot product of 16-bit integers (`vpdpwssd`) adds two products per lane, twice as many as an f32 multiply-add.
//! Weights and activations are rounded to integers with a scale for each [`CHUNK`] of a row. The scale bounds the
//! norm of the chunk, so sums over a chunk fit 32 bits (Cauchy–Schwarz):
//!
//! ```text
//! |sum of q_w q_x| <= norm(q_w) * norm(q_x) < 2^31
//! ```
//!
//! The squared error of a rounded chunk is about 1e-8 of its square, or 2e-8 if a single element dominates. The error
//! of a conversion to f16 is larger, 4e-8.
//!
//! ```text
//! for 512 columns:                                  # the columns stay in the cache for all panels
//!     for i in rows, step 2 registers:
//!         for 256 elements:                         # the panel stays in L1 for all columns
//!             decode, transpose, and round to pairs of integers
//!             for tile of N columns:
//!                 sums[N][2] = 0                    # i32, exact
//!                 for pair of elements:
//!                     sums[N][2] += dot2(panel[pair], broadcast(x[column][pair]))
//!                 out += f32(sums) * scale of x * scale of w
//! ```

use super::float_panels::{BLOCK, FLOAT_PANEL_SCRATCH, GROUPS, MAX_ROWS, decode, store_or_add, transpose};
use super::integers::{largest_magnitude, spread};
use super::products::FloatFormat;
use super::rows::sum_of_squares;
use crate::GgmlType;
use crate::layout::runs::CHUNK;
use crate::simd::Simd;
use crate::simd::dots::ByteDots;

const _: () = assert!(BLOCK == CHUNK);

/// Largest norm of a chunk in integers before rounding. Rounding adds at most half of the root of [`CHUNK`].
const NORM: f32 = 46_300.0;

const _: () = {
    let norm = NORM as i64 + 9;
    assert!(norm * norm < i32::MAX as i64);
};

/// Largest magnitude of an integer.
const MAX: f32 = 32_767.0;

/// Sums of squares in this range neither overflow nor lose small elements.
const SQUARES: std::ops::Range<f32> = 1e-30..1e37;

/// Maximum number of columns that all panels are multiplied by before the next columns.
const COLUMNS: usize = 512;

/// Pairs per iteration of the inner loop.
const TURN: usize = 4;

/// Scratch memory in floats: the memory of a panel of floats, and the scales of its rows.
pub(crate) const PAIR_PANEL_SCRATCH: usize = FLOAT_PANEL_SCRATCH + 2 * MAX_ROWS;

/// Returns true if this module multiplies weights of type `ty`.
pub(crate) const fn is_for(ty: GgmlType) -> bool {
    matches!(ty, GgmlType::F16 | GgmlType::BF16)
}

/// A chunk of activations. Elements beyond the end of the row are 0.
#[repr(C)]
pub(crate) struct PairChunk {
    /// NaN if an activation is not finite, so that every result computed from the chunk is NaN.
    scale: f32,
    /// Padding that aligns the values to a cache line.
    _pad: [f32; 15],
    values: [i16; CHUNK],
}

/// Returns the size in bytes of a row of `k` activations, at least one chunk.
pub(crate) const fn pair_row_bytes(k: usize) -> usize {
    let n_chunks = if k == 0 { 1 } else { k.div_ceil(CHUNK) };
    spread(n_chunks * size_of::<PairChunk>())
}

/// Operands of [`multiply`].
#[derive(Clone, Copy)]
pub(crate) struct PairProduct {
    /// `m` rows of `k` weights.
    pub w: *const u8,
    /// Distance between rows in bytes.
    pub row_stride: usize,
    pub m: usize,
    pub k: usize,
    /// `n` rows of activations, written by [`quantize`].
    pub x: *const u8,
    /// Distance between rows in bytes.
    pub x_stride: usize,
    pub n: usize,
    /// `n` rows of `m` results.
    pub out: *mut f32,
    /// Distance between rows in floats.
    pub out_stride: usize,
    /// Scratch memory of [`PAIR_PANEL_SCRATCH`] floats.
    pub scratch: *mut f32,
}

/// A tile of a matmul: the rows of a panel times some columns.
#[derive(Clone, Copy)]
struct Tile {
    /// Weight panel: a pair of integers per row for each pair of elements.
    w: *const u8,
    /// Scale of each row.
    scales: *const f32,
    n_pairs: usize,
    /// Number of valid rows.
    m: usize,
    /// The chunk of activations of the first column.
    x: *const u8,
    x_stride: usize,
    out: *mut f32,
    out_stride: usize,
    /// Adds to `out` instead of overwriting it.
    accumulate: bool,
}

/// Returns the scale of a chunk of `n` floats and its inverse, or NaN and 0 if an element is not finite.
///
/// # Safety
/// The CPU supports `V`, and `x` is valid for reads of `n` floats.
#[inline(always)]
unsafe fn scale_of<V: Simd>(x: *const f32, n: usize) -> [f32; 2] {
    // SAFETY: function contract.
    let (max, squares) = unsafe { (largest_magnitude::<V>(x, n), sum_of_squares::<V>(x, n)) };
    if !max.is_finite() {
        return [f32::NAN, 0.0];
    }
    let norm = if SQUARES.contains(&squares) {
        squares.sqrt()
    } else {
        // The bound for equal magnitudes.
        max * (CHUNK as f32).sqrt()
    };
    // At least the smallest normal float, so that the inverse is finite.
    let scale = (max / MAX).max(norm / NORM).max(f32::MIN_POSITIVE);
    [scale, 1.0 / scale]
}

/// Quantizes `k` activations to a row of chunks.
///
/// # Safety
/// - The CPU supports `V`.
/// - `x` is valid for reads of `k` floats, and `out` for writes of [`pair_row_bytes`] bytes.
#[inline(always)]
pub(crate) unsafe fn quantize<V: Simd>(x: *const f32, k: usize, out: *mut u8) {
    for at in (0..k.max(1)).step_by(CHUNK) {
        let n = CHUNK.min(k - at);
        // SAFETY: reads of `x` end at `k`, and `k / CHUNK` chunks (rounded up) fit in the row (function contract).
        unsafe {
            let [scale, inverse] = scale_of::<V>(x.add(at), n);
            let chunk = out.add(at / CHUNK * size_of::<PairChunk>()).cast::<PairChunk>();
            (&raw mut (*chunk).scale).write_unaligned(scale);
            let values = (&raw mut (*chunk).values).cast::<u8>();
            for j in (0..CHUNK).step_by(V::LANES) {
                let x = x.wrapping_add(at + j);
                let floats = if j + V::LANES <= n {
                    V::load(x)
                } else {
                    V::load_partial(x, n.saturating_sub(j))
                };
                floats
                    .mul(V::splat(inverse))
                    .store_i16(values.add(j * size_of::<i16>()));
            }
        }
    }
}

/// Multiplies panel by panel. The order of additions for a result does not depend on the other rows and columns.
///
/// # Safety
/// - The CPU supports `D` and the instructions of `format`. The weights have the format `format`, whose type
///   [is supported](is_for).
/// - The operands of `p` are valid for the documented accesses, and nothing else accesses the results.
#[inline(always)]
pub(crate) unsafe fn multiply<D: ByteDots, const MOST: usize>(p: &PairProduct, format: &FloatFormat) {
    let n_blocks = p.n.div_ceil(COLUMNS);
    for block in 0..n_blocks {
        let [first, end] = [block, block + 1].map(|block| p.n * block / n_blocks);
        // SAFETY: columns `first..end` are below `p.n`.
        unsafe {
            let columns = PairProduct {
                x: p.x.add(first * p.x_stride),
                n: end - first,
                out: p.out.add(first * p.out_stride),
                ..*p
            };
            multiply_columns::<D, MOST>(&columns, format);
        }
    }
}

/// Multiplies panel by panel.
///
/// # Safety
/// The contract of [`multiply`] holds.
#[inline(always)]
unsafe fn multiply_columns<D: ByteDots, const MOST: usize>(p: &PairProduct, format: &FloatFormat) {
    let rows = GROUPS * D::Float::LANES;
    // SAFETY: the scratch memory has `PAIR_PANEL_SCRATCH` floats (function contract).
    let (panel, scales) = unsafe { (p.scratch.add(MAX_ROWS * BLOCK), p.scratch.add(FLOAT_PANEL_SCRATCH)) };
    for i in (0..p.m).step_by(rows) {
        let m = rows.min(p.m - i);
        // Process at least one chunk even if `k` is 0, to write zeros.
        for c in (0..p.k.max(1)).step_by(CHUNK) {
            let k = CHUNK.min(p.k - c);
            // SAFETY: rows `i..i + m` are below `p.m` and elements `c..c + k` below `p.k`.
            unsafe {
                let w = p.w.add(i * p.row_stride + c * format.ty.block_bytes());
                decode(w, p.row_stride, [m, k], format, p.scratch);
                fill::<D::Float>(p.scratch, [m, k], panel, scales);
                let tile = Tile {
                    w: panel.cast::<u8>().cast_const(),
                    scales,
                    n_pairs: k.div_ceil(2),
                    m,
                    x: p.x.add(c / CHUNK * size_of::<PairChunk>()),
                    x_stride: p.x_stride,
                    out: p.out.add(i),
                    out_stride: p.out_stride,
                    accumulate: c > 0,
                };
                multiply_panel::<D, MOST>(tile, p.n);
            }
        }
    }
}

/// Rounds `m` decoded rows of `k` floats to a panel of pairs. Rows at index `m` and above are arbitrary.
///
/// # Safety
/// - The CPU supports `V`, and `m` is at most `GROUPS * V::LANES`.
/// - `decoded` is valid for whole squares of 8 x 8 floats in rows of [`BLOCK`], `panel` for [`MAX_ROWS`] times
///   [`BLOCK`] floats, and `scales` for 2 times [`MAX_ROWS`] floats.
#[inline(always)]
unsafe fn fill<V: Simd>(decoded: *const f32, [m, k]: [usize; 2], panel: *mut f32, scales: *mut f32) {
    let rows = GROUPS * V::LANES;
    // SAFETY: function contract. The pairs replace the floats of the panel. Pair `p` is written after elements `2 p`
    // and `2 p + 1` are read, and no later element is before its end.
    unsafe {
        let inverses = scales.add(MAX_ROWS);
        for r in 0..rows {
            let [scale, inverse] = if r < m {
                scale_of::<V>(decoded.add(r * BLOCK), k)
            } else {
                [0.0; 2]
            };
            *scales.add(r) = scale;
            *inverses.add(r) = inverse;
        }
        transpose::<V>(decoded, BLOCK, [m, k], panel);
        for pair in 0..k.div_ceil(2) {
            for group in 0..GROUPS {
                let at = group * V::LANES;
                let inverse = V::load(inverses.add(at));
                let even = V::load(panel.add(2 * pair * rows + at)).mul(inverse);
                let odd = if 2 * pair + 1 < k {
                    V::load(panel.add((2 * pair + 1) * rows + at)).mul(inverse)
                } else {
                    V::splat(0.0)
                };
                V::store_i16_pairs(even, odd, panel.add(pair * rows + at).cast());
            }
        }
    }
}

/// Multiplies a panel by `n` columns, up to `MOST` at a time. `all` describes a tile at the first column.
///
/// # Safety
/// The CPU supports `D`, and `all` describes a panel whose activations and outputs are valid for `n` columns.
#[inline(always)]
unsafe fn multiply_panel<D: ByteDots, const MOST: usize>(all: Tile, n: usize) {
    let mut first = 0;
    while first < n {
        let left = n - first;
        // SAFETY: the columns of each tile are below `n`, so the tile is valid (function contract).
        unsafe {
            let at = Tile {
                x: all.x.add(first * all.x_stride),
                out: all.out.add(first * all.out_stride),
                ..all
            };
            first += if left >= MOST {
                multiply_tile::<D, MOST>(&at);
                MOST
            } else if left >= 4 {
                multiply_tile::<D, 4>(&at);
                4
            } else {
                multiply_tile::<D, 1>(&at);
                1
            };
        }
    }
}

/// Multiplies a tile of `N` columns.
///
/// # Safety
/// The CPU supports `D`, and `t` describes a panel whose activations and outputs are valid for `N` columns.
#[inline(always)]
unsafe fn multiply_tile<D: ByteDots, const N: usize>(t: &Tile) {
    const PAIR: usize = 2 * size_of::<i16>();
    let pair_bytes = GROUPS * D::Float::LANES * PAIR;
    // SAFETY: the panel has `n_pairs` pairs, and a chunk of activations of each column is readable. The results of
    // `t.m` rows and `N` columns are writable, and readable if `t.accumulate` is set (function contract).
    unsafe {
        let mut sums = [[D::zero(); GROUPS]; N];
        let mut w = t.w;
        let mut x = t.x.add(std::mem::offset_of!(PairChunk, values));
        for _ in 0..t.n_pairs / TURN {
            for i in 0..TURN {
                add_pair(w.add(i * pair_bytes), x.add(i * PAIR), t.x_stride, &mut sums);
            }
            w = w.add(TURN * pair_bytes);
            x = x.add(TURN * PAIR);
        }
        for i in 0..t.n_pairs % TURN {
            add_pair(w.add(i * pair_bytes), x.add(i * PAIR), t.x_stride, &mut sums);
        }
        for j in 0..N {
            let scale_of_x = t.x.add(j * t.x_stride).cast::<PairChunk>();
            let scale_of_x = D::Float::splat((&raw const (*scale_of_x).scale).read_unaligned());
            for group in 0..GROUPS {
                let at = group * D::Float::LANES;
                if at < t.m {
                    let scale = D::Float::load(t.scales.add(at)).mul(scale_of_x);
                    let results = sums[j][group].floats().mul(scale);
                    store_or_add(t.out.add(j * t.out_stride + at), t.m - at, t.accumulate, results);
                }
            }
        }
    }
}

/// Adds the products of a pair of elements of each row and column.
///
/// # Safety
/// The CPU supports `D`, `w` is valid for reads of two registers, and `x` for reads of 4 bytes per column.
#[inline(always)]
unsafe fn add_pair<D: ByteDots, const N: usize>(
    w: *const u8,
    x: *const u8,
    x_stride: usize,
    sums: &mut [[D; GROUPS]; N],
) {
    // SAFETY: function contract.
    unsafe {
        let weights = [D::load(w), D::load(w.add(size_of::<D>()))];
        for j in 0..N {
            let x = D::broadcast(x.add(j * x_stride));
            for group in 0..GROUPS {
                sums[j][group] = sums[j][group].add_pair_dots(weights[group], x);
            }
        }
    }
}
