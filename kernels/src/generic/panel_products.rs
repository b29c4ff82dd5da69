//! GEMM of panels with 16-bit activations ([`I16Chunk`]) for many columns.
//!
//! A [panel](super::pack) is a chunk of 16 rows as 16-bit integers. `vpmaddwd` multiplies two adjacent weights
//! of 8 rows by two activations of a column and adds both products, so a lane never leaves its row:
//!
//! ```text
//! panel, word 0, even   | w0[0] w0[2] | w1[0] w1[2] |  ..  | w7[0] w7[2] |      32 bytes, a lane per row
//! activations, even     | x[0]  x[2]  | x[0]  x[2]  |  ..  | x[0]  x[2]  |      one 4-byte broadcast
//!                       ---------------------------------------------------
//! total +=              | w0[0] x[0] + w0[2] x[2]   |  ..                |      i32
//! ```
//!
//! # Loop
//!
//! ```text
//! for i in rows, step 4 panels (64 rows):
//!     for 4 chunks (1024 elements):                 # 16 panel chunks stay in L2
//!         fill the panel chunks                     # see `pack`
//!         for 16 columns:
//!             for chunk, for panel:                 # activations stay in L1
//!                 for tile of 4 columns:
//!                     prefetch some of the next weights
//!                     total[4][2] += madd(w, x)     # 4 columns x 2 registers of rows
//!                     sums[4][2]  += total * scale  # after a run, or half a run
//!                 sums += mins * sums of x
//!     out = sums * scale of x
//! ```
//!
//! With at most 64 columns, each panel chunk is multiplied right after it is filled, and activations are read
//! from L2 instead ([`multiply_few`]).
//!
//! # Limits
//!
//! - A panel of fewer than 16 rows takes as long as a full one.
//! - `vpmaddwd` computes half as many products as the byte instructions of [`gemm_u8`](super::gemm_u8). This
//!   module is for activations that need 16 bits.
//! - Sums of elements that share a scale are exact. They are accumulated in f32 in an order that depends only
//!   on the length of a row. Hence the bits of a result do not depend on the other rows and columns.

use std::mem::offset_of;

use super::integers::{I16Chunk, I16Header};
use super::pack::{GROUPS, I16Values, PANEL_ROWS, PanelChunk, WeightRows, fill};
use super::weight_prefetch::WeightPrefetcher;
use crate::layout::groups::LANES;
use crate::layout::runs::{CHUNK, RUN, RUNS};
use crate::simd::{IntSimd, Simd};

/// A matmul of weights by quantized activations, possibly a part of a larger one.
///
/// Fields have the meaning of [`MatMul`](crate::MatMul). Invariants, checked in
/// [`matmul_with`](crate::matmul::matmul_with):
/// - `w` satisfies the invariants of [`WeightRows`].
/// - `x` is valid for reads of `n` rows in the form that the kernel expects, `x_stride` bytes apart.
/// - `out` is valid for writes of `w.m` floats at each `j * out_stride`, `j < n`, and nothing else accesses
///   them.
/// - `scratch` has as many floats as the kernel's `*_scratch` function returns.
#[derive(Clone, Copy)]
pub(crate) struct PanelProduct {
    pub w: WeightRows,
    /// Quantized rows of activations, `x_stride` bytes apart.
    pub x: *const u8,
    pub x_stride: usize,
    pub n: usize,
    pub out: *mut f32,
    pub out_stride: usize,
    /// Scratch memory of [`panel_scratch`] floats.
    pub scratch: *mut f32,
}

/// Panels filled before they are multiplied; they share the reads of the activations.
const PANELS: usize = 4;

/// Maximum chunks of a row in the filled panels, so that they stay in the L2 cache for rows of any length.
const PANEL_CHUNKS: usize = 4;

/// Columns multiplied by the panels at a time. Their chunks, a panel chunk, and the sums stay in the L1
/// cache.
const COLUMNS: usize = 16;

/// Maximum columns of [`multiply_few`], which keeps a panel chunk in the L1 cache and the columns' chunks in the L2
/// cache.
const FEW_COLUMNS: usize = 64;

/// Columns whose sums are in registers at a time.
const TILE: usize = 4;

/// Alignment of panels in bytes.
const ALIGN: usize = 64;

/// Returns the scratch memory in floats for rows of `k` elements and `n` columns.
pub(crate) const fn panel_scratch(k: usize, n: usize) -> usize {
    let chunks = k.div_ceil(CHUNK);
    let (chunks, blocks) = if chunks <= PANEL_CHUNKS {
        (chunks, 1)
    } else {
        (PANEL_CHUNKS, n.div_ceil(COLUMNS))
    };
    let bytes = chunks * PANELS * size_of::<PanelChunk<I16Values>>() + blocks * size_of::<PanelSums>();
    (bytes + ALIGN) / size_of::<f32>()
}

/// Adds the product of a chunk's first `runs` runs, without minimums. `x` is the chunk of the first column;
/// `sums` has one entry per column. Each tile prefetches its share of the `next` weights.
///
/// # Safety
/// - The CPU supports `V`.
/// - `x` is valid for `sums.len()` chunks, `x_stride` bytes apart, and the panel's first `runs` runs are set.
#[inline(always)]
unsafe fn add_products<V: IntSimd>(
    panel: &PanelChunk<I16Values>,
    by_16: bool,
    runs: usize,
    x: *const u8,
    x_stride: usize,
    sums: &mut [[f32; PANEL_ROWS]],
    next: &mut WeightPrefetcher,
) {
    let (mut x, mut sums) = (x, sums);
    while !sums.is_empty() {
        next.fetch();
        // Divide the columns evenly instead of leaving a few for the last tile.
        let n = sums.len().div_ceil(sums.len().div_ceil(TILE));
        let (tile, rest) = sums.split_at_mut(n);
        // SAFETY: each tile covers at most the remaining columns of `sums` (function contract).
        unsafe {
            match n {
                4 => add_words::<V, 4>(panel, by_16, runs, x, x_stride, tile),
                3 => add_words::<V, 3>(panel, by_16, runs, x, x_stride, tile),
                2 => add_words::<V, 2>(panel, by_16, runs, x, x_stride, tile),
                _ => add_words::<V, 1>(panel, by_16, runs, x, x_stride, tile),
            }
        }
        x = x.wrapping_add(n * x_stride);
        sums = rest;
    }
}

/// Adds the products of `N` columns, with all sums in registers: i32 for a run or half run, f32 for the
/// chunk.
///
/// # Safety
/// - The CPU supports `V`.
/// - `x` is valid for `N` chunks, `x_stride` bytes apart, `sums` has `N` entries, and the panel's first
///   `runs` runs are set.
#[inline(always)]
unsafe fn add_words<V: IntSimd, const N: usize>(
    panel: &PanelChunk<I16Values>,
    by_16: bool,
    runs: usize,
    x: *const u8,
    x_stride: usize,
    sums: &mut [[f32; PANEL_ROWS]],
) {
    // Number of scales per run, and number of quarters of a run that share a scale.
    let (parts, quarters) = if by_16 { (2, 2) } else { (1, 4) };
    // SAFETY: all offsets are within a panel chunk and an `I16Chunk` of each of `N` columns (function
    // contract).
    unsafe {
        let mut tile = [[V::Float::splat(0.0); GROUPS]; N];
        for j in 0..N {
            for group in 0..GROUPS {
                tile[j][group] = V::Float::load(sums[j].as_ptr().add(group * LANES));
            }
        }
        let mut w = (&raw const panel.values).cast::<u8>();
        for part in 0..runs * parts {
            let (run, second) = (part / parts, part % parts);
            let mut x = x.add(offset_of!(I16Chunk, values) + run * 2 * RUN + second * RUN / 2);
            let mut totals = [[V::splat(0); GROUPS]; N];
            for _ in 0..quarters {
                for step in 0..QUARTER / 4 {
                    for odd in 0..2 {
                        let w = w.add(step * 128 + odd * 32);
                        let of_groups = [V::load(w), V::load(w.add(64))];
                        for j in 0..N {
                            let q = V::broadcast(x.add(j * x_stride + step * 4 + odd * RUN));
                            for group in 0..GROUPS {
                                totals[j][group] = totals[j][group].add_pairs(of_groups[group], q);
                            }
                            totals[j] = V::compute_together(totals[j]);
                        }
                    }
                }
                w = w.add(QUARTER / 4 * 128);
                x = x.add(QUARTER);
            }
            let scales = &panel.scales[2 * run + second];
            let scales = [V::Float::load(scales[0].as_ptr()), V::Float::load(scales[1].as_ptr())];
            for j in 0..N {
                for group in 0..GROUPS {
                    tile[j][group] = totals[j][group].to_floats().mul_add(scales[group], tile[j][group]);
                }
            }
        }
        for j in 0..N {
            for group in 0..GROUPS {
                tile[j][group].store(sums[j].as_mut_ptr().add(group * LANES));
            }
        }
    }
}

/// Elements of a quarter run; the loop over them is unrolled.
const QUARTER: usize = RUN / 4;

/// Sums of a panel's rows with some columns.
type ColumnSums = [[f32; PANEL_ROWS]; COLUMNS];

/// Sums of several panels' rows with some columns.
#[repr(C, align(64))]
struct PanelSums([ColumnSums; PANELS]);

/// Multiplies panels of some rows and chunks by all columns. If rows have more chunks, their sums are stored
/// in scratch memory meanwhile.
///
/// # Safety
/// - The CPU supports `V`.
/// - `p` satisfies the invariants of [`PanelProduct`] for [`I16Chunk`] activations.
#[inline(always)]
pub(crate) unsafe fn multiply<V: IntSimd>(p: &PanelProduct) {
    if p.n <= FEW_COLUMNS {
        // SAFETY: the caller upholds the contract of `multiply_few`.
        return unsafe { multiply_few::<V>(p) };
    }
    let chunks = p.w.k.div_ceil(CHUNK);
    let step = PANEL_CHUNKS.min(chunks);
    // SAFETY: after alignment, the scratch memory holds `step * PANELS` panel chunks and the sums of each
    // block of columns ([`panel_scratch`]). Rows, columns, and chunks are bounded by `p`.
    unsafe {
        let scratch = p.scratch.cast::<u8>();
        let panels = scratch.add(scratch.align_offset(ALIGN)).cast::<PanelChunk<I16Values>>();
        let stored = panels.add(step * PANELS).cast::<PanelSums>();
        for i in (0..p.w.m).step_by(PANELS * PANEL_ROWS) {
            for first in (0..chunks).step_by(step) {
                let part = ChunkRange {
                    panels: PANELS.min((p.w.m - i).div_ceil(PANEL_ROWS)),
                    first,
                    end: chunks.min(first + step),
                };
                let mut to = panels;
                for c in part.first..part.end {
                    for panel in 0..part.panels {
                        fill::<V, I16Values>(&p.w, i + panel * PANEL_ROWS, c, &mut *to);
                        to = to.add(1);
                    }
                }
                let (next_i, next_first) = if part.end < chunks {
                    (i, part.end)
                } else {
                    (i + PANELS * PANEL_ROWS, 0)
                };
                let next_end = chunks.min(next_first + step);
                let (rows, times) = (PANELS * PANEL_ROWS, part.len() * p.n.div_ceil(TILE));
                let mut next = WeightPrefetcher::new(&p.w, next_i, next_first..next_end, rows, times);
                for j in (0..p.n).step_by(COLUMNS) {
                    let PanelSums(totals) = &mut *stored.add(if step < chunks { j / COLUMNS } else { 0 });
                    let totals = &mut totals[..part.panels];
                    if first == 0 {
                        totals.as_flattened_mut().as_flattened_mut().fill(0.0);
                    }
                    multiply_part::<V>(p, &part, panels, j, totals, &mut next);
                    if part.end == chunks {
                        store_totals::<V, _>(p, i, j, totals);
                    }
                }
            }
        }
    }
}

/// Chunks `first..end` of the rows of some panels.
struct ChunkRange {
    panels: usize,
    first: usize,
    end: usize,
}

impl ChunkRange {
    /// Returns the number of panel chunks.
    fn len(&self) -> usize {
        self.panels * (self.end - self.first)
    }
}

/// Multiplies filled panel chunks, ordered `[chunk][panel]`, by up to [`COLUMNS`] columns starting at `j`. All panels
/// use a chunk of activations before the next one, so that it stays in the L1 cache.
///
/// # Safety
/// - The CPU supports `V`.
/// - `p` satisfies the invariants of [`PanelProduct`], `j < p.n`, and `panel` points to the filled chunks of
///   `part`.
#[inline(always)]
unsafe fn multiply_part<V: IntSimd>(
    p: &PanelProduct,
    part: &ChunkRange,
    mut panel: *const PanelChunk<I16Values>,
    j: usize,
    totals: &mut [ColumnSums],
    next: &mut WeightPrefetcher,
) {
    let columns = COLUMNS.min(p.n - j);
    for c in part.first..part.end {
        for sums in &mut *totals {
            // SAFETY: `panel` has a filled chunk for each `c` and panel, and columns end at `p.n` (function
            // contract).
            unsafe {
                add_chunk::<V>(p, &*panel, c, p.x.add(j * p.x_stride), &mut sums[..columns], next);
                panel = panel.add(1);
            }
        }
    }
}

/// Adds the product of chunk `c` of a panel. `x` is the row of the first column.
///
/// # Safety
/// - The CPU supports `V`.
/// - `x` is valid for `sums.len()` rows, `c * CHUNK < p.w.k`, and the panel holds chunk `c`.
#[inline(always)]
unsafe fn add_chunk<V: IntSimd>(
    p: &PanelProduct,
    panel: &PanelChunk<I16Values>,
    c: usize,
    x: *const u8,
    sums: &mut [[f32; PANEL_ROWS]],
    next: &mut WeightPrefetcher,
) {
    let (runs, integers) = (RUNS.min((p.w.k - c * CHUNK) / RUN), &p.w.integers);
    // SAFETY: chunk `c` is part of each row at `x` (function contract).
    unsafe {
        let x = x.add(size_of::<I16Header>() + c * size_of::<I16Chunk>());
        add_products::<V>(panel, integers.by_16, runs, x, p.x_stride, sums, next);
        // A zero point is already subtracted from the integers of a panel.
        if integers.has_own_mins() {
            add_mins::<V>(integers.by_16, panel, runs, x, p.x_stride, sums);
        }
    }
}

/// Adds the minimums times the sums of the activations. `x` is the chunk of the first column; `sums` has one
/// entry per column.
///
/// # Safety
/// - The CPU supports `V`.
/// - `x` is valid for `sums.len()` chunks, `x_stride` bytes apart, and the panel's first `runs` minimums are
///   set.
#[inline(always)]
unsafe fn add_mins<V: IntSimd>(
    by_16: bool,
    panel: &PanelChunk<I16Values>,
    runs: usize,
    x: *const u8,
    x_stride: usize,
    sums: &mut [[f32; PANEL_ROWS]],
) {
    let mut column = 0;
    let mut tiles = sums.chunks_exact_mut(4);
    // SAFETY: each tile covers columns of `sums`, whose chunks are valid (function contract).
    unsafe {
        for tile in &mut tiles {
            add_mins_to::<V, 4>(by_16, panel, runs, x.add(column * x_stride), x_stride, tile);
            column += 4;
        }
        for tile in tiles.into_remainder().chunks_exact_mut(1) {
            add_mins_to::<V, 1>(by_16, panel, runs, x.add(column * x_stride), x_stride, tile);
            column += 1;
        }
    }
}

/// Adds the minimums times the sums of the activations for `N` columns.
///
/// # Safety
/// - The CPU supports `V`.
/// - `x` is valid for `N` chunks, `x_stride` bytes apart, `sums` has `N` entries, and the panel's first
///   `runs` minimums are set.
#[inline(always)]
unsafe fn add_mins_to<V: IntSimd, const N: usize>(
    by_16: bool,
    panel: &PanelChunk<I16Values>,
    runs: usize,
    x: *const u8,
    x_stride: usize,
    sums: &mut [[f32; PANEL_ROWS]],
) {
    // SAFETY: `j < N` chunks are valid at `x`, and `sums` has `N` entries of 16 floats (function contract).
    unsafe {
        let mut totals = [[V::Float::splat(0.0); GROUPS]; N];
        for half in (0..2 * runs).step_by(if by_16 { 1 } else { 2 }) {
            let mins = &panel.mins[half];
            let mins = [V::Float::load(mins[0].as_ptr()), V::Float::load(mins[1].as_ptr())];
            for j in 0..N {
                let x = x.add(j * x_stride);
                let sum_of_x = V::Float::splat(sums_at(x, half / 2, if by_16 { 1 + half % 2 } else { 0 }));
                totals[j] = [
                    mins[0].mul_add(sum_of_x, totals[j][0]),
                    mins[1].mul_add(sum_of_x, totals[j][1]),
                ];
            }
        }
        for (sums, totals) in sums.iter_mut().zip(totals) {
            for group in 0..GROUPS {
                let to = sums.as_mut_ptr().add(group * LANES);
                V::Float::load(to).add(totals[group]).store(to);
            }
        }
    }
}

/// Returns the sum of a run in row `row` of a chunk's sums.
///
/// # Safety
/// `x` points to an [`I16Chunk`], `run < RUNS`, and `row < 3`.
#[inline(always)]
unsafe fn sums_at(x: *const u8, run: usize, row: usize) -> f32 {
    // SAFETY: `run` and `row` are within the chunk's sums (function contract).
    unsafe {
        let sums = x.add(offset_of!(I16Chunk, sums)).cast::<f32>();
        sums.add(row * RUNS + run).read_unaligned()
    }
}

/// Writes the sums of panels to the output, starting at row `i` and column `j`.
///
/// # Safety
/// - The CPU supports `V`.
/// - `p` satisfies the invariants of [`PanelProduct`], `i < p.w.m`, and `j < p.n`.
#[inline(always)]
unsafe fn store_totals<V: IntSimd, const N: usize>(
    p: &PanelProduct,
    i: usize,
    j: usize,
    totals: &[[[f32; PANEL_ROWS]; N]],
) {
    for (column, j) in (j..p.n).take(N).enumerate() {
        // SAFETY: rows are written up to `p.w.m` and columns up to `p.n`, which `out` covers (function
        // contract).
        unsafe {
            let scale = V::Float::splat(I16Header::scale_at(p.x.add(j * p.x_stride)));
            let out = p.out.add(j * p.out_stride);
            for (group, i) in (i..p.w.m).step_by(LANES).take(totals.len() * GROUPS).enumerate() {
                let sums = &totals[group / GROUPS][column];
                let sums = V::Float::load(sums.as_ptr().add(group % GROUPS * LANES)).mul(scale);
                if i + LANES <= p.w.m {
                    sums.store(out.add(i));
                } else {
                    sums.store_partial(out.add(i), p.w.m - i);
                }
            }
        }
    }
}

/// Multiplies by up to [`FEW_COLUMNS`] columns, with the same floating-point operations as [`multiply`]. Each
/// panel chunk is multiplied while it is in the L1 cache, and the weights of the next one are prefetched.
///
/// # Safety
/// - The CPU supports `V`.
/// - `p` satisfies the invariants of [`PanelProduct`] for [`I16Chunk`] activations, and `p.n <= FEW_COLUMNS`.
#[inline(always)]
unsafe fn multiply_few<V: IntSimd>(p: &PanelProduct) {
    let chunks = p.w.k.div_ceil(CHUNK);
    // SAFETY: after alignment, the scratch memory holds at least one panel chunk; rows and chunks are bounded
    // by `p`.
    unsafe {
        let scratch = p.scratch.cast::<u8>();
        let panel = scratch.add(scratch.align_offset(ALIGN)).cast::<PanelChunk<I16Values>>();
        for i in (0..p.w.m).step_by(PANEL_ROWS) {
            let mut totals = [[0.0; PANEL_ROWS]; FEW_COLUMNS];
            for c in 0..chunks {
                fill::<V, I16Values>(&p.w, i, c, &mut *panel);
                let (next_i, next_c) = if c + 1 < chunks {
                    (i, c + 1)
                } else {
                    (i + PANEL_ROWS, 0)
                };
                let times = p.n.div_ceil(TILE);
                let mut next = WeightPrefetcher::new(&p.w, next_i, next_c..next_c + 1, PANEL_ROWS, times);
                add_chunk::<V>(p, &*panel, c, p.x, &mut totals[..p.n], &mut next);
            }
            store_totals::<V, _>(p, i, 0, &[totals]);
        }
    }
}
