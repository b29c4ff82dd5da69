//! Matrix products: rows of weights of any type times rows of activations.
//!
//! An element of the result is the same sum in the same order wherever it stands among rows and columns that are computed together,
//! so that splitting rows over threads changes nothing.

use super::blocks::{Decode, Dot, bytes_of, dequantize};
use super::streams::Streams;
use crate::GgmlType;
use crate::prefetch::{CACHE_LINE, CacheLevel, prefetch};
use crate::simd::Simd;

/// A chunk of a product with all it needs. See [`matmul`](crate::matmul()) for the meaning.
#[derive(Clone, Copy)]
pub(crate) struct Product {
    pub w: *const u8,
    pub row_stride: usize,
    pub m: usize,
    pub k: usize,
    pub x: *const f32,
    pub x_stride: usize,
    pub n: usize,
    pub out: *mut f32,
    pub out_stride: usize,
    /// If `n > 1` the floats of [`panel_size`], or for many columns of [`float_panels`](super::float_panels).
    pub panel: *mut f32,
}

/// Rows of weights that are decoded together, a multiple of [`TILE_M`], and the floats of each. Together at most a quarter of a megabyte, half of
/// a small L2 cache, however long rows are.
pub(crate) const fn panel_size(k: usize) -> (usize, usize) {
    // A block of a row, and what must be decoded before and behind it to have whole blocks of the type.
    let stride = if k <= BLOCK_K { k } else { BLOCK_K + 2 * 256 };
    let rows = (1 << 16) / if stride == 0 { 1 } else { stride };
    let rows = rows / TILE_M * TILE_M;
    (if rows > 64 { 64 } else { rows }, stride)
}

/// Rows of weights in a tile of sums held in registers.
const TILE_M: usize = 4;

/// Activations of a tile are used for every row of a panel; at most this many of each row, so that they stay in L1.
const BLOCK_K: usize = 1024;

/// Rows that are multiplied at a time with one column: as many streams from memory.
const ROWS: usize = 4;

/// Bytes by which each of these streams is prefetched.
const AHEAD: usize = 4096;

/// One column: weights are decoded in registers and never stored.
///
/// # Safety
/// The CPU has `V`'s instructions and `p` keeps the contract of [`matmul`](crate::matmul()).
#[inline(always)]
pub(crate) unsafe fn matvec<V: Simd, D: Decode<V>>(p: &Product) {
    let streams = Streams::<ROWS>::new(p.m);
    for i in 0..streams.turns() {
        // SAFETY: the caller's promise; the rows of streams that have one lie below `m`.
        unsafe {
            let n = streams.len(i);
            let totals = dot_rows::<V, D>(streams.rows(p.w, p.row_stride, i), n, p.x, p.k);
            for (s, total) in totals.into_iter().enumerate().take(n) {
                *p.out.add(streams.row(s, i)) = total;
            }
        }
    }
}

/// The first `n` of these rows, 256 elements of each at a time. Their number is not a constant, so that the loop over them stays a loop:
/// unrolled, the work of several rows gets mixed up and does not fit the registers.
///
/// # Safety
/// As for [`matvec`].
#[inline(always)]
unsafe fn dot_rows<V: Simd, D: Decode<V>>(rows: [*const u8; ROWS], n: usize, x: *const f32, k: usize) -> [f32; ROWS] {
    let turn = 256usize.next_multiple_of(D::STEP);
    // SAFETY: the caller's promise.
    unsafe {
        let mut sums = [Dot::<V>::new(x); ROWS];
        for c in (0..k).step_by(turn) {
            let elements = turn.min(k - c);
            for (row, sums) in rows.iter().zip(&mut sums).take(n) {
                let mut sink = *sums;
                let mut p = row.add(bytes_of::<D>(c));
                // Behind its row a stream goes on in the next one.
                for line in 0..bytes_of::<D>(elements).div_ceil(CACHE_LINE) {
                    prefetch(p.wrapping_add(AHEAD + line * CACHE_LINE), CacheLevel::First);
                }
                for _ in 0..elements / D::STEP {
                    D::decode(p, &mut sink);
                    sink.advance(D::STEP);
                    p = p.add(bytes_of::<D>(D::STEP));
                }
                if !elements.is_multiple_of(D::STEP) {
                    D::decode_rest(p, elements % D::STEP, &mut sink);
                }
                *sums = sink;
            }
        }
        V::sum4([sums[0].total(), sums[1].total(), sums[2].total(), sums[3].total()])
    }
}

/// Several columns: a panel of rows is decoded to memory and multiplied tile by tile.
///
/// # Safety
/// As for [`matvec`].
#[inline(always)]
pub(crate) unsafe fn matmul<V: Simd, D: Decode<V>>(p: &Product, tiles: &Tiles) {
    let (rows, stride) = panel_size(p.k);
    let n_blocks = p.k.div_ceil(BLOCK_K).max(1);
    // A multiple of every register, so that only the last block has a rest.
    let block = p.k.div_ceil(n_blocks).next_multiple_of(16).max(16);
    for i in (0..p.m).step_by(rows) {
        let m = rows.min(p.m - i);
        // Even for k = 0 one block, which writes the zeros.
        for c in (0..p.k.max(1)).step_by(block) {
            let k = block.min(p.k - c);
            // SAFETY: the caller's promise; rows `i..i + m` lie below `p.m`, elements `c..c + k` below `p.k`, and both fit the panel.
            unsafe {
                let w = p.w.add(i * p.row_stride);
                let panel = if D::TYPE == GgmlType::F32 && p.row_stride.is_multiple_of(size_of::<f32>()) {
                    let stride = p.row_stride / size_of::<f32>();
                    let w = w.cast::<f32>().add(c);
                    Panel { w, stride, i, m, c, k }
                } else {
                    // Whole steps of the decoder.
                    let first = c / D::STEP * D::STEP;
                    let end = (c + k).next_multiple_of(D::STEP).min(p.k);
                    for r in 0..m {
                        let w = w.add(r * p.row_stride + bytes_of::<D>(first));
                        dequantize::<V, D>(w, p.panel.add(r * stride), end - first);
                    }
                    let w = p.panel.add(c - first).cast_const();
                    Panel { w, stride, i, m, c, k }
                };
                multiply_panel(p, &panel, tiles);
            }
        }
    }
}

/// Elements `c..c + k` of rows `i..i + m` of the weights as floats, `stride` apart.
struct Panel {
    w: *const f32,
    stride: usize,
    i: usize,
    m: usize,
    c: usize,
    k: usize,
}

/// Adds what belongs to a panel to its rows of the product; the panel at the start of rows begins them.
///
/// # Safety
/// As for [`matvec`], and the panel holds its rows.
unsafe fn multiply_panel(p: &Product, panel: &Panel, tiles: &Tiles) {
    let mut j = 0;
    for left in (1..=p.n.div_ceil(tiles.len())).rev() {
        // Tiles as equal as possible: a narrow one is slow.
        let n = (p.n - j).div_ceil(left);
        for r in (0..panel.m).step_by(TILE_M) {
            // SAFETY: the caller's promise; the tile lies within the panel, the activations and the output.
            unsafe {
                let tile = Tile {
                    w: panel.w.add(r * panel.stride),
                    w_stride: panel.stride,
                    m: TILE_M.min(panel.m - r),
                    x: p.x.add(j * p.x_stride + panel.c),
                    x_stride: p.x_stride,
                    k: panel.k,
                    out: p.out.add(j * p.out_stride + panel.i + r),
                    out_stride: p.out_stride,
                    accumulate: panel.c > 0,
                };
                tiles[n - 1](&tile);
            }
        }
        j += n;
    }
}

/// The tile functions of an instruction set: the one at `n - 1` is for `n` columns.
pub(crate) type Tiles = [unsafe fn(&Tile)];

/// Up to [`TILE_M`] rows of weights (f32) times some rows of activations, over part of k.
pub(crate) struct Tile {
    w: *const f32,
    w_stride: usize,
    m: usize,
    x: *const f32,
    x_stride: usize,
    k: usize,
    out: *mut f32,
    out_stride: usize,
    /// Adds to what `out` holds.
    accumulate: bool,
}

/// A tile of `N` columns.
///
/// # Safety
/// The CPU has `V`'s instructions, and the tile lies within its operands.
#[inline(always)]
pub(crate) unsafe fn tile<V: Simd, const N: usize>(t: &Tile) {
    // SAFETY: the caller's promise. Rows that the tile lacks are computed from its first row and dropped, which keeps the order
    // of every sum the same.
    unsafe {
        let w: [*const f32; TILE_M] = std::array::from_fn(|r| if r < t.m { t.w.add(r * t.w_stride) } else { t.w });
        let x: [*const f32; N] = std::array::from_fn(|j| t.x.add(j * t.x_stride));
        let mut sums = [[V::splat(0.0); TILE_M]; N];
        let mut c = 0;
        while c + V::LANES <= t.k {
            let mut xs = [V::splat(0.0); N];
            for j in 0..N {
                xs[j] = V::load(x[j].add(c));
            }
            for r in 0..TILE_M {
                let w = V::load(w[r].add(c));
                for j in 0..N {
                    sums[j][r] = w.mul_add(xs[j], sums[j][r]);
                }
            }
            c += V::LANES;
        }
        if c < t.k {
            for r in 0..TILE_M {
                let w = V::load_partial(w[r].add(c), t.k - c);
                for j in 0..N {
                    sums[j][r] = w.mul_add(V::load_partial(x[j].add(c), t.k - c), sums[j][r]);
                }
            }
        }
        for (j, sums) in sums.into_iter().enumerate() {
            let totals = V::sum4(sums);
            let out = t.out.add(j * t.out_stride);
            for (r, total) in totals.into_iter().enumerate().take(t.m) {
                let before = if t.accumulate { *out.add(r) } else { 0.0 };
                *out.add(r) = before + total;
            }
        }
    }
}
