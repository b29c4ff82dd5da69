//! GEMM of floating-point weights with f32 activations for many columns.
//!
//! Weights are decoded and transposed, so that a register holds one weight of each of several rows. Each
//! activation is broadcast and multiplied by whole registers, and no sum is added across lanes:
//!
//! ```text
//! rows as decoded                 panel
//! row 0 | w00 w01 w02 ..          element 0 | w00 w10 w20 .. |   2 registers of rows
//! row 1 | w10 w11 w12 ..          element 1 | w01 w11 w21 .. |
//!   ..                              ..
//!
//! for 256 columns:                                  # the columns stay in the cache for all panels
//!     for i in rows, step 2 registers:
//!         for 256 elements:                         # the panel stays in L1 for all columns
//!             decode and transpose in 8 x 8 squares
//!             for tile of N columns:
//!                 for 128 elements:                 # a chain of additions
//!                     sums[N][2] += panel[element] * broadcast(x[column][element])
//!                 out += sums
//! ```

use super::products::{FloatFormat, Product};
use crate::GgmlType;
use crate::simd::Simd;

/// Minimum columns for which transposing the weights pays off; half as many gain only 3 %.
pub(crate) const FLOAT_PANEL_COLUMNS: usize = 32;

/// Registers of rows multiplied by the same activations.
pub(super) const GROUPS: usize = 2;

/// Elements of a row in a panel, whole blocks of any type. A panel of 16 rows takes half of the L1 cache and
/// stays there for all columns.
pub(super) const BLOCK: usize = 256;

/// Maximum number of columns that all panels are multiplied by before the next columns. The activations of many
/// columns do not fit into the cache. With all 5184 columns at a time, an encoder of Qwen2.5-VL takes 1.7 times as
/// long (Zen 3).
const COLUMNS: usize = 256;

/// Maximum products in a chain of additions. Longer sums are sums of chains, which reduces rounding errors.
/// Ending a chain takes time: with 64 a tile is 4 % slower.
const CHAIN: usize = 128;

/// Elements per iteration of the inner loop; the number of iterations is then small enough for its end to be
/// predicted.
const TURN: usize = 4;

/// Returns true if this module multiplies weights of type `ty`. For other types, performance relies on
/// [quantized activations](crate::activation_form).
pub(crate) const fn is_for(ty: GgmlType) -> bool {
    matches!(ty, GgmlType::F32 | GgmlType::F16 | GgmlType::BF16)
}

/// Maximum rows of a panel, in the widest registers.
pub(super) const MAX_ROWS: usize = GROUPS * 16;

/// Scratch memory in floats: one block of a panel's rows, decoded and transposed.
pub(crate) const FLOAT_PANEL_SCRATCH: usize = 2 * MAX_ROWS * BLOCK;

/// A tile of a matmul: the rows of a panel times some columns.
pub(crate) struct PanelTile {
    /// Weight panel, `[k][GROUPS * LANES]`.
    w: *const f32,
    k: usize,
    /// Number of valid rows.
    m: usize,
    x: *const f32,
    x_stride: usize,
    out: *mut f32,
    out_stride: usize,
    /// Adds to `out` instead of overwriting it.
    accumulate: bool,
}

/// Tile functions of an instruction set; index `n - 1` is for `n` columns.
pub(crate) type PanelTiles = [unsafe fn(&PanelTile)];

/// Multiplies panel by panel. The order of additions for a result does not depend on the other rows and
/// columns.
///
/// # Safety
/// - The CPU supports `V`, and the weights have the format `format`, whose type [is supported](is_for).
/// - `p` satisfies the invariants of [`Product`], and `p.panel` has [`FLOAT_PANEL_SCRATCH`] floats.
#[inline(always)]
pub(crate) unsafe fn multiply<V: Simd>(p: &Product, format: &FloatFormat, tiles: &PanelTiles) {
    let n_blocks = p.n.div_ceil(COLUMNS);
    for block in 0..n_blocks {
        let [first, end] = [block, block + 1].map(|block| p.n * block / n_blocks);
        // SAFETY: columns `first..end` are below `p.n`.
        unsafe {
            let columns = Product {
                x: p.x.add(first * p.x_stride),
                n: end - first,
                out: p.out.add(first * p.out_stride),
                ..*p
            };
            multiply_columns::<V>(&columns, format, tiles);
        }
    }
}

/// Multiplies panel by panel.
///
/// # Safety
/// - The CPU supports `V`, and the weights have the format `format`, whose type [is supported](is_for).
/// - `p` satisfies the invariants of [`Product`], and `p.panel` has [`FLOAT_PANEL_SCRATCH`] floats.
#[inline(always)]
unsafe fn multiply_columns<V: Simd>(p: &Product, format: &FloatFormat, tiles: &PanelTiles) {
    let rows = GROUPS * V::LANES;
    // SAFETY: `p.panel` has `2 * MAX_ROWS * BLOCK` floats (function contract).
    let (decoded, panel) = unsafe { (p.panel, p.panel.add(MAX_ROWS * BLOCK)) };
    for i in (0..p.m).step_by(rows) {
        let m = rows.min(p.m - i);
        // Process at least one block even if `k` is 0, to write zeros.
        for c in (0..p.k.max(1)).step_by(BLOCK) {
            let k = BLOCK.min(p.k - c);
            // SAFETY: rows `i..i + m` are below `p.m` and elements `c..c + k` below `p.k`. The transposition
            // may read other floats of the scratch memory; their products are never stored.
            unsafe {
                let w = p.w.add(i * p.row_stride + c * format.ty.block_bytes());
                let is_plain = format.ty == GgmlType::F32 && p.row_stride.is_multiple_of(size_of::<f32>());
                // Transposition reads 8 x 8 squares.
                let (from, stride) = if is_plain && m.is_multiple_of(8) && k.is_multiple_of(8) {
                    (w.cast(), p.row_stride / size_of::<f32>())
                } else {
                    decode(w, p.row_stride, [m, k], format, decoded);
                    (decoded.cast_const(), BLOCK)
                };
                transpose::<V>(from, stride, [m, k], panel);
                let tile = PanelTile {
                    w: panel,
                    k,
                    m,
                    x: p.x.add(c),
                    x_stride: p.x_stride,
                    out: p.out.add(i),
                    out_stride: p.out_stride,
                    accumulate: c > 0,
                };
                multiply_panel(tile, p.n, tiles);
            }
        }
    }
}

/// Decodes `k` elements of each of `m` rows to rows of [`BLOCK`] floats.
///
/// # Safety
/// - The CPU supports the instructions of `format.dequantize`, and `w` has `m` rows, `stride` bytes apart.
/// - `m` is at most [`MAX_ROWS`], `k` at most [`BLOCK`], and `to` is valid for `m` rows of floats.
#[inline(always)]
pub(super) unsafe fn decode(w: *const u8, stride: usize, [m, k]: [usize; 2], format: &FloatFormat, to: *mut f32) {
    for r in 0..m {
        // SAFETY: row `r` exists in both operands (function contract).
        unsafe { (format.dequantize)(w.add(r * stride), to.add(r * BLOCK), k) }
    }
}

/// Transposes `m` rows of `k` floats to a panel, `[k][GROUPS * LANES]`, in squares of 8 x 8.
///
/// # Safety
/// - The CPU supports `V`.
/// - `m` is at most `GROUPS * V::LANES`, and `k` at most [`BLOCK`]. Both operands are valid for whole squares.
#[inline(always)]
pub(super) unsafe fn transpose<V: Simd>(from: *const f32, stride: usize, [m, k]: [usize; 2], panel: *mut f32) {
    let rows = GROUPS * V::LANES;
    for (r, at) in (0..m).step_by(8).flat_map(|r| (0..k).step_by(8).map(move |at| (r, at))) {
        // SAFETY: both operands are valid for the square (function contract).
        unsafe { V::transpose(from.add(r * stride + at), stride, panel.add(at * rows + r), rows) }
    }
}

/// Multiplies a panel by `n` columns. `all` describes a tile at the first column.
///
/// # Safety
/// - The CPU supports the instruction set of `tiles`.
/// - `all` describes a panel whose activations and outputs are valid for `n` columns.
unsafe fn multiply_panel(all: PanelTile, n: usize, tiles: &PanelTiles) {
    let mut j = 0;
    for left in (1..=n.div_ceil(tiles.len())).rev() {
        // Divide the columns evenly; a narrow tile is slow.
        let columns = (n - j).div_ceil(left);
        // SAFETY: columns `j..j + columns` are below `n`, so the tile is valid (function contract).
        unsafe {
            let tile = PanelTile {
                x: all.x.add(j * all.x_stride),
                out: all.out.add(j * all.out_stride),
                ..all
            };
            tiles[columns - 1](&tile);
        }
        j += columns;
    }
}

/// Multiplies a tile of `N` columns.
///
/// # Safety
/// - The CPU supports `V`.
/// - `t` describes a panel whose activations and outputs are valid for `N` columns.
#[inline(always)]
pub(crate) unsafe fn tile<V: Simd, const N: usize>(t: &PanelTile) {
    // SAFETY: `c < t.k`, and the activations and outputs of `N` columns are valid (function contract).
    unsafe {
        let mut w = t.w;
        for first in (0..t.k.max(1)).step_by(CHAIN) {
            let mut sums = [[V::splat(0.0); GROUPS]; N];
            let end = t.k.min(first + CHAIN);
            let mut c = first;
            while c + TURN <= end {
                for i in 0..TURN {
                    add(w.add(i * GROUPS * V::LANES), t.x.add(c + i), t.x_stride, &mut sums);
                }
                w = w.add(TURN * GROUPS * V::LANES);
                c += TURN;
            }
            while c < end {
                add(w, t.x.add(c), t.x_stride, &mut sums);
                w = w.add(GROUPS * V::LANES);
                c += 1;
            }
            let accumulate = t.accumulate || first > 0;
            for (j, sums) in sums.into_iter().enumerate() {
                for (group, sum) in sums.into_iter().enumerate() {
                    let at = group * V::LANES;
                    if at < t.m {
                        store_or_add(t.out.add(j * t.out_stride + at), t.m - at, accumulate, sum);
                    }
                }
            }
        }
    }
}

/// Adds the products of one element of each row and column.
///
/// # Safety
/// - The CPU supports `V`.
/// - `w` is valid for two registers, and `x` for one float per column.
#[inline(always)]
unsafe fn add<V: Simd, const N: usize>(w: *const f32, x: *const f32, x_stride: usize, sums: &mut [[V; GROUPS]; N]) {
    // SAFETY: two registers at `w` and a float per column at `x` are readable (function contract).
    unsafe {
        let weights = [V::load(w), V::load(w.add(V::LANES))];
        for (j, sums) in sums.iter_mut().enumerate() {
            let x = V::splat(*x.add(j * x_stride));
            for (sum, weights) in sums.iter_mut().zip(weights) {
                *sum = weights.mul_add(x, *sum);
            }
        }
    }
}

/// Writes the first `n` lanes of `sum`, or adds them to `out`.
///
/// # Safety
/// - The CPU supports `V`.
/// - `out` is valid for reads and writes of `min(n, LANES)` floats.
#[inline(always)]
pub(super) unsafe fn store_or_add<V: Simd>(out: *mut f32, n: usize, accumulate: bool, sum: V) {
    // SAFETY: `out` is valid for `min(n, LANES)` floats (function contract).
    unsafe {
        match (n < V::LANES, accumulate) {
            (false, false) => sum.store(out),
            (false, true) => V::load(out).add(sum).store(out),
            (true, false) => sum.store_partial(out, n),
            (true, true) => V::load_partial(out, n).add(sum).store_partial(out, n),
        }
    }
}
