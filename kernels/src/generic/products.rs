//! Matmul of weights of any type with f32 activations.
//!
//! ```text
//! matvec (1 column):                              matmul (several columns):
//! for step in streams:           # 4 rows         for panel of rows:            # up to 64, decoded to L2
//!     for 256 elements:                               for 1024 elements:
//!         for row in 0..4:                                decode the panel to f32
//!             sums[row] += decode(w) * x                  for tile of N columns:
//!     out = sum of lanes                                      for 4 rows of the panel:
//!                                                                 sums[N][4] += w * x
//!                                                             out += sum of lanes
//! ```
//!
//! The order of additions for a result does not depend on the other rows and columns, so splitting rows
//! between threads changes nothing.

use super::blocks::Dot;
use super::streams::Streams;
use crate::GgmlType;
use crate::layout::block::bytes_of;
use crate::layout::decode::Decode;
use crate::prefetch::{CACHE_LINE, CacheLevel, prefetch};
use crate::simd::Simd;

/// A matmul of weights by f32 activations, possibly a part of a larger one.
///
/// Fields have the meaning of [`MatMul`](crate::MatMul). Invariants, checked in
/// [`matmul_with`](crate::matmul::matmul_with):
/// - `w` is valid for reads of `m` rows, `row_stride` bytes apart.
/// - `x` is valid for reads of `n` rows of `k` floats, `x_stride` floats apart.
/// - `out` is valid for writes of `m` floats at each `j * out_stride`, `j < n`, and nothing else accesses
///   them.
/// - `k` is a whole number of blocks.
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
    /// Scratch memory for `n > 1`: [`panel_size`], or [`float_panels`](super::float_panels) scratch for many
    /// columns.
    pub panel: *mut f32,
}

/// Returns the number of rows decoded together, a multiple of [`TILE_M`], and the floats per row. A panel
/// takes at most 256 KiB, half of a small L2 cache, for rows of any length.
pub(crate) const fn panel_size(k: usize) -> (usize, usize) {
    // Elements decoded at a time: up to BLOCK_K of a row, and up to one quantization block before and after.
    let stride = if k <= BLOCK_K { k } else { BLOCK_K + 2 * 256 };
    let rows = (1 << 16) / if stride == 0 { 1 } else { stride };
    let rows = rows / TILE_M * TILE_M;
    (if rows > 64 { 64 } else { rows }, stride)
}

/// Number of weight rows in a register tile.
const TILE_M: usize = 4;

/// Maximum elements of a row per tile. The activations of a tile are reused for every row of a panel and must
/// stay in the L1 cache.
const BLOCK_K: usize = 1024;

/// Rows multiplied at a time by one column, each part of its own memory stream.
const ROWS: usize = 4;

/// Prefetch distance of each stream in bytes.
const PREFETCH_DISTANCE: usize = 2048;

/// Multiplies by one column. Weights are decoded in registers and never stored.
///
/// # Safety
/// - The CPU supports `V`.
/// - `p` satisfies the invariants of [`Product`].
#[inline(always)]
pub(crate) unsafe fn matvec<V: Simd, D: Decode<V>>(p: &Product) {
    let streams = Streams::<ROWS>::new(p.m);
    for i in 0..streams.n_steps() {
        // SAFETY: `streams.rows` yields rows below `m`, and `streams.row(s, i) < m` for `s < n`.
        unsafe {
            let n = streams.len(i);
            let totals = dot_rows::<V, D>(streams.rows(p.w, p.row_stride, i), n, p.x, p.k);
            for (s, total) in totals.into_iter().enumerate().take(n) {
                *p.out.add(streams.row(s, i)) = total;
            }
        }
    }
}

/// Returns the dot products of the first `n` rows, processing 256 elements of each row at a time. `n` is not
/// a constant, so that the loop over rows stays a loop; unrolled, the interleaved work of several rows would
/// spill registers.
///
/// # Safety
/// - The CPU supports `V`.
/// - Each of the first `n` rows is valid for `k` elements, and `x` for `k` floats.
#[inline(always)]
unsafe fn dot_rows<V: Simd, D: Decode<V>>(rows: [*const u8; ROWS], n: usize, x: *const f32, k: usize) -> [f32; ROWS] {
    let turn = 256usize.next_multiple_of(D::STEP);
    // SAFETY: `c + elements <= k`, so all reads are within the rows and `x` (function contract).
    unsafe {
        let mut sums = [Dot::<V>::new(x); ROWS];
        for c in (0..k).step_by(turn) {
            let elements = turn.min(k - c);
            for (row, sums) in rows.iter().zip(&mut sums).take(n) {
                let mut sink = *sums;
                let mut p = row.add(bytes_of::<D>(c));
                // Beyond the end of its row, a stream continues with the next row.
                for line in 0..bytes_of::<D>(elements).div_ceil(CACHE_LINE) {
                    prefetch(
                        p.wrapping_add(PREFETCH_DISTANCE + line * CACHE_LINE),
                        CacheLevel::Second,
                    );
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

/// Rows of some type, with the function that decodes them.
pub(crate) struct FloatFormat {
    pub ty: GgmlType,
    /// Decodes elements, whole blocks, to floats.
    pub dequantize: unsafe fn(*const u8, *mut f32, usize),
}

/// Multiplies by several columns. A panel of rows is decoded to memory and multiplied in register tiles.
///
/// # Safety
/// - The CPU supports the instruction set of `tiles` and `format`, and the weights have this format.
/// - `p` satisfies the invariants of [`Product`], and `p.panel` has the floats of [`panel_size`].
pub(crate) unsafe fn matmul(p: &Product, format: &FloatFormat, tiles: &Tiles) {
    let (block_size, block_bytes) = (format.ty.block_size(), format.ty.block_bytes());
    let (rows, stride) = panel_size(p.k);
    let n_blocks = p.k.div_ceil(BLOCK_K).max(1);
    // A multiple of every register width, so that only the last block has a remainder.
    let block = p.k.div_ceil(n_blocks).next_multiple_of(16).max(16);
    for i in (0..p.m).step_by(rows) {
        let m = rows.min(p.m - i);
        // Process at least one block even if `k` is 0, to write zeros.
        for c in (0..p.k.max(1)).step_by(block) {
            let k = block.min(p.k - c);
            // SAFETY: rows `i..i + m` are below `p.m`, elements `c..c + k` below `p.k`, and the panel holds
            // both ([`panel_size`]).
            unsafe {
                let w = p.w.add(i * p.row_stride);
                let panel = if format.ty == GgmlType::F32 && p.row_stride.is_multiple_of(size_of::<f32>()) {
                    let stride = p.row_stride / size_of::<f32>();
                    let w = w.cast::<f32>().add(c);
                    Panel { w, stride, i, m, c, k }
                } else {
                    // Decode whole quantization blocks.
                    let first = c / block_size * block_size;
                    let end = (c + k).next_multiple_of(block_size).min(p.k);
                    for r in 0..m {
                        let w = w.add(r * p.row_stride + first / block_size * block_bytes);
                        (format.dequantize)(w, p.panel.add(r * stride), end - first);
                    }
                    let w = p.panel.add(c - first).cast_const();
                    Panel { w, stride, i, m, c, k }
                };
                multiply_panel(p, &panel, tiles);
            }
        }
    }
}

/// Elements `c..c + k` of rows `i..i + m` of the weights as floats, `stride` floats apart.
struct Panel {
    w: *const f32,
    stride: usize,
    i: usize,
    m: usize,
    c: usize,
    k: usize,
}

/// Multiplies a panel by all columns. The first panel of a row (`c == 0`) overwrites the output; later ones
/// add to it.
///
/// # Safety
/// - The CPU supports the instruction set of `tiles`.
/// - `p` satisfies the invariants of [`Product`], and `panel` holds its rows as floats.
unsafe fn multiply_panel(p: &Product, panel: &Panel, tiles: &Tiles) {
    let mut j = 0;
    for left in (1..=p.n.div_ceil(tiles.len())).rev() {
        // Divide the columns evenly; a narrow tile is slow.
        let n = (p.n - j).div_ceil(left);
        for r in (0..panel.m).step_by(TILE_M) {
            // SAFETY: rows `r..r + m` are within the panel and columns `j..j + n` below `p.n` (function
            // contract).
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

/// Tile functions of an instruction set; index `n - 1` is for `n` columns.
pub(crate) type Tiles = [unsafe fn(&Tile)];

/// A tile of up to [`TILE_M`] rows of f32 weights times some columns, over part of `k`.
pub(crate) struct Tile {
    w: *const f32,
    w_stride: usize,
    m: usize,
    x: *const f32,
    x_stride: usize,
    k: usize,
    out: *mut f32,
    out_stride: usize,
    /// Adds to `out` instead of overwriting it.
    accumulate: bool,
}

/// Multiplies a tile of `N` columns.
///
/// # Safety
/// - The CPU supports `V`.
/// - `t.w` is valid for `m` rows, and `t.x` and `t.out` for `N` columns.
#[inline(always)]
pub(crate) unsafe fn tile<V: Simd, const N: usize>(t: &Tile) {
    // SAFETY: reads end at `t.k` within `m` rows and `N` columns (function contract). Rows beyond `t.m`
    // repeat the first row and are dropped, which preserves the order of additions.
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
