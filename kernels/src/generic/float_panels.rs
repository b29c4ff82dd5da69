//! Products with many columns of floats: weights are decoded, and transposed so that a register holds a weight of each of several rows. Then each activation
//! is multiplied with whole registers, and no sum has to be added up across lanes.

use super::blocks::{Decode, bytes_of, dequantize};
use super::products::Product;
use crate::GgmlType;
use crate::simd::Simd;

/// Columns from which on transposing the weights is worth it: with half as many it gains 3 %.
pub(crate) const FLOAT_PANEL_COLUMNS: usize = 32;

/// Registers of rows that are multiplied with the same activations.
const GROUPS: usize = 2;

/// Weights of a row in a panel, whole blocks of any type. A panel of 16 rows then takes half of a first-level cache, and stays there for all columns.
const BLOCK: usize = 256;

/// Products that are added up one after the other: longer sums are sums of such sums, which rounds less. Each end of a chain takes time: with 64 a tile
/// is 4 % slower.
const CHAIN: usize = 128;

/// Weights of a row that are multiplied in a turn of the loop: with as few turns as that its end is predicted.
const TURN: usize = 4;

/// Whether panels are for weights of a type: of others activations are [quantized](crate::activation_form) where speed matters.
pub(crate) const fn is_for(ty: GgmlType) -> bool {
    matches!(ty, GgmlType::F32 | GgmlType::F16 | GgmlType::BF16)
}

/// Most rows of a panel, those of the widest registers.
const MOST_ROWS: usize = GROUPS * 16;

/// Floats of scratch memory: a block of each row of a panel as it is decoded, and transposed.
pub(crate) const FLOAT_PANEL_SCRATCH: usize = 2 * MOST_ROWS * BLOCK;

/// Part of the product of a panel.
pub(crate) struct PanelTile {
    /// `[k][GROUPS * LANES]` weights.
    w: *const f32,
    k: usize,
    /// Rows that there are.
    m: usize,
    x: *const f32,
    x_stride: usize,
    out: *mut f32,
    out_stride: usize,
    /// Adds to what `out` holds.
    accumulate: bool,
}

/// The tile functions of an instruction set: the one at `n - 1` is for `n` columns.
pub(crate) type PanelTiles = [unsafe fn(&PanelTile)];

/// Multiplies, panel by panel. An element is the same sum in the same order whatever other rows and columns there are.
///
/// # Safety
/// The CPU has `V`'s instructions, `p` keeps the contract of [`matmul`](crate::matmul()), and `p.panel` has [`FLOAT_PANEL_SCRATCH`] floats.
#[inline(always)]
pub(crate) unsafe fn multiply<V: Simd, D: Decode<V>>(p: &Product, tiles: &PanelTiles) {
    let rows = GROUPS * V::LANES;
    // SAFETY: the caller's promise: both parts of the scratch memory hold a panel.
    let (decoded, panel) = unsafe { (p.panel, p.panel.add(MOST_ROWS * BLOCK)) };
    for i in (0..p.m).step_by(rows) {
        let m = rows.min(p.m - i);
        // Even for k = 0 one block, which writes the zeros.
        for c in (0..p.k.max(1)).step_by(BLOCK) {
            let k = BLOCK.min(p.k - c);
            // SAFETY: the caller's promise; rows `i..i + m` lie below `p.m`, elements `c..c + k` below `p.k`. What a panel has beyond them are
            // floats of the scratch memory, whose products are not stored.
            unsafe {
                let w = p.w.add(i * p.row_stride + bytes_of::<D>(c));
                let is_plain = D::TYPE == GgmlType::F32 && p.row_stride.is_multiple_of(size_of::<f32>());
                // Transposing reads squares of 8 x 8.
                let (from, stride) = if is_plain && m.is_multiple_of(8) && k.is_multiple_of(8) {
                    (w.cast(), p.row_stride / size_of::<f32>())
                } else {
                    for r in 0..m {
                        dequantize::<V, D>(w.add(r * p.row_stride), decoded.add(r * BLOCK), k);
                    }
                    (decoded.cast_const(), BLOCK)
                };
                for (r, at) in (0..m).step_by(8).flat_map(|r| (0..k).step_by(8).map(move |at| (r, at))) {
                    V::transpose(from.add(r * stride + at), stride, panel.add(at * rows + r), rows);
                }
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

/// Multiplies a panel with `n` columns, of which `all` are those from the first on.
///
/// # Safety
/// As for [`multiply`]; the columns and their results are there.
unsafe fn multiply_panel(all: PanelTile, n: usize, tiles: &PanelTiles) {
    let mut j = 0;
    for left in (1..=n.div_ceil(tiles.len())).rev() {
        // Tiles as equal as possible: a narrow one is slow.
        let columns = (n - j).div_ceil(left);
        // SAFETY: the caller's promise.
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

/// A tile of `N` columns.
///
/// # Safety
/// The CPU has `V`'s instructions, and the tile lies within its operands.
#[inline(always)]
pub(crate) unsafe fn tile<V: Simd, const N: usize>(t: &PanelTile) {
    // SAFETY: the caller's promise.
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
                        put(t.out.add(j * t.out_stride + at), t.m - at, accumulate, sum);
                    }
                }
            }
        }
    }
}

/// Adds the products of one weight of each row with an element of each column.
///
/// # Safety
/// As for [`tile`].
#[inline(always)]
unsafe fn add<V: Simd, const N: usize>(w: *const f32, x: *const f32, x_stride: usize, sums: &mut [[V; GROUPS]; N]) {
    // SAFETY: the caller's promise.
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

/// Writes the first `n` lanes of sums, or adds them to what is there.
///
/// # Safety
/// `out` is valid for as many floats.
#[inline(always)]
unsafe fn put<V: Simd>(out: *mut f32, n: usize, accumulate: bool, sum: V) {
    // SAFETY: the caller's promise.
    unsafe {
        match (n < V::LANES, accumulate) {
            (false, false) => sum.store(out),
            (false, true) => V::load(out).add(sum).store(out),
            (true, false) => sum.store_partial(out, n),
            (true, true) => V::load_partial(out, n).add(sum).store_partial(out, n),
        }
    }
}
