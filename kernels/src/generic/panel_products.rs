//! Products of panels of weights with many rows of activations, both as integers of 16 bits: see [`PanelChunk`].
//!
//! Sums of elements that have one scale are exact. They are added up in f32, in an order that only depends on the length of a row: an element of
//! the result has the same bits whatever other rows and columns are computed with it.

use std::mem::offset_of;

use super::integers::{CHUNK, I16Chunk, I16Header, RUN, RUNS};
use super::weight_prefetch::NextWeights;
use super::pack::{GROUPS, LANES, PANEL_ROWS, PanelChunk, WeightRows, WideValues, fill};
use crate::simd::{IntSimd, Simd};

/// A chunk of a product with all it needs. See [`matmul`](crate::matmul()) for the meaning.
#[derive(Clone, Copy)]
pub(crate) struct PanelProduct {
    pub w: WeightRows,
    /// Rows of activations as integers, `x_stride` bytes apart.
    pub x: *const u8,
    pub x_stride: usize,
    pub n: usize,
    pub out: *mut f32,
    pub out_stride: usize,
    /// [`panel_scratch`] floats.
    pub scratch: *mut f32,
}

/// Panels that are filled before they are multiplied: activations are read once for all of them.
const PANELS: usize = 4;

/// Chunks of a row that are in a panel, so that all panels stay in the second-level cache however long rows are.
const PANEL_CHUNKS: usize = 4;

/// Columns that are multiplied with the panels at a time: their chunks, a panel's chunk and the sums stay in the first-level cache.
const COLUMNS: usize = 16;

/// Bytes to whose multiples panels are aligned.
const ALIGN: usize = 64;

/// Floats of scratch memory for rows of `k` elements and `n` columns.
pub(crate) const fn panel_scratch(k: usize, n: usize) -> usize {
    let chunks = k.div_ceil(CHUNK);
    let (chunks, blocks) = if chunks <= PANEL_CHUNKS {
        (chunks, 1)
    } else {
        (PANEL_CHUNKS, n.div_ceil(COLUMNS))
    };
    let bytes = chunks * PANELS * size_of::<PanelChunk<WideValues>>() + blocks * size_of::<Totals>();
    (bytes + ALIGN) / size_of::<f32>()
}

/// Adds the product of a chunk's first `runs` runs, without minimums. `x` is the chunk of the first column, `sums` holds as many columns
/// as are multiplied.
///
/// # Safety
/// The CPU has `V`'s instructions and the operands are as large as that.
#[inline(always)]
unsafe fn add_products<V: IntSimd>(
    panel: &PanelChunk<WideValues>,
    by_16: bool,
    runs: usize,
    x: *const u8,
    x_stride: usize,
    sums: &mut [[f32; PANEL_ROWS]],
) {
    let mut x = x;
    for tile in sums.chunks_mut(4) {
        // SAFETY: the caller's promise.
        unsafe {
            match tile.len() {
                4 => add_words::<V, 4>(panel, by_16, runs, x, x_stride, tile),
                3 => add_words::<V, 3>(panel, by_16, runs, x, x_stride, tile),
                2 => add_words::<V, 2>(panel, by_16, runs, x, x_stride, tile),
                _ => add_words::<V, 1>(panel, by_16, runs, x, x_stride, tile),
            }
        }
        x = x.wrapping_add(4 * x_stride);
    }
}

/// `N` columns with their sums in registers: of 32 bits for each run or half of one, of floats for all.
///
/// # Safety
/// As for [`add_products`].
#[inline(always)]
unsafe fn add_words<V: IntSimd, const N: usize>(
    panel: &PanelChunk<WideValues>,
    by_16: bool,
    runs: usize,
    x: *const u8,
    x_stride: usize,
    sums: &mut [[f32; PANEL_ROWS]],
) {
    // Parts of a run that have a scale of their own, and the quarters of a run in each.
    let (parts, quarters) = if by_16 { (2, 2) } else { (1, 4) };
    // SAFETY: the caller's promise; all offsets are those of a chunk.
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
                            totals[j] = V::side_by_side(totals[j]);
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

/// Elements of a quarter of a run, for which the loop is unrolled.
const QUARTER: usize = RUN / 4;

/// The sums of a panel's rows with some columns.
type ColumnSums = [[f32; PANEL_ROWS]; COLUMNS];

/// The sums of some panels' rows with some columns.
#[repr(C, align(64))]
struct Totals([ColumnSums; PANELS]);

/// Multiplies: panels of some rows and chunks are filled, then multiplied with all columns. Sums of rows that are longer wait in scratch memory.
///
/// # Safety
/// The CPU has `V`'s instructions and `p` keeps the contract of [`matmul`](crate::matmul()).
#[inline(always)]
pub(crate) unsafe fn multiply<V: IntSimd>(p: &PanelProduct) {
    if p.n <= COLUMNS {
        // SAFETY: the caller's promise.
        return unsafe { multiply_few::<V>(p) };
    }
    let chunks = p.w.k.div_ceil(CHUNK);
    let step = PANEL_CHUNKS.min(chunks);
    // SAFETY: the caller's promise; the scratch memory holds as many panels and sums, once aligned.
    unsafe {
        let scratch = p.scratch.cast::<u8>();
        let panels = scratch
            .add(scratch.align_offset(ALIGN))
            .cast::<PanelChunk<WideValues>>();
        let waiting = panels.add(step * PANELS).cast::<Totals>();
        for i in (0..p.w.m).step_by(PANELS * PANEL_ROWS) {
            for first in (0..chunks).step_by(step) {
                let part = Part {
                    panels: PANELS.min((p.w.m - i).div_ceil(PANEL_ROWS)),
                    first,
                    end: chunks.min(first + step),
                };
                let mut to = panels;
                for c in part.first..part.end {
                    for panel in 0..part.panels {
                        fill::<V, WideValues>(&p.w, i + panel * PANEL_ROWS, c, &mut *to);
                        to = to.add(1);
                    }
                }
                let (next_i, next_first) = if part.end < chunks {
                    (i, part.end)
                } else {
                    (i + PANELS * PANEL_ROWS, 0)
                };
                let next_end = chunks.min(next_first + step);
                let (rows, times) = (PANELS * PANEL_ROWS, p.n.div_ceil(COLUMNS));
                let mut next = NextWeights::new(&p.w, next_i, next_first..next_end, rows, times);
                for j in (0..p.n).step_by(COLUMNS) {
                    next.fetch();
                    let Totals(totals) = &mut *waiting.add(if step < chunks { j / COLUMNS } else { 0 });
                    let totals = &mut totals[..part.panels];
                    if first == 0 {
                        totals.as_flattened_mut().as_flattened_mut().fill(0.0);
                    }
                    multiply_part::<V>(p, &part, panels, j, totals);
                    if part.end == chunks {
                        put_totals::<V>(p, i, j, totals);
                    }
                }
            }
        }
    }
}

/// Chunks `first..end` of the rows of some panels.
struct Part {
    panels: usize,
    first: usize,
    end: usize,
}

/// A part of some panels, `[chunk][panel]`, times up to [`COLUMNS`] columns from `j` on. All panels take their turn with a chunk, so that what
/// they have in common, activations, stays in the first-level cache.
///
/// # Safety
/// As for [`multiply`]; the panels hold the chunks.
#[inline(always)]
unsafe fn multiply_part<V: IntSimd>(
    p: &PanelProduct,
    part: &Part,
    mut panel: *const PanelChunk<WideValues>,
    j: usize,
    totals: &mut [ColumnSums],
) {
    let columns = COLUMNS.min(p.n - j);
    for c in part.first..part.end {
        for sums in &mut *totals {
            // SAFETY: the caller's promise; rows, columns and chunks lie within the operands.
            unsafe {
                add_chunk::<V>(p, &*panel, c, p.x.add(j * p.x_stride), &mut sums[..columns]);
                panel = panel.add(1);
            }
        }
    }
}

/// Adds the product of chunk `c` of a panel. `x` is the row of the first column.
///
/// # Safety
/// As for [`multiply`].
#[inline(always)]
unsafe fn add_chunk<V: IntSimd>(
    p: &PanelProduct,
    panel: &PanelChunk<WideValues>,
    c: usize,
    x: *const u8,
    sums: &mut [[f32; PANEL_ROWS]],
) {
    let (runs, integers) = (RUNS.min((p.w.k - c * CHUNK) / RUN), &p.w.integers);
    // SAFETY: the caller's promise; the chunk lies within the rows.
    unsafe {
        let x = x.add(size_of::<I16Header>() + c * size_of::<I16Chunk>());
        add_products::<V>(panel, integers.by_16, runs, x, p.x_stride, sums);
        // Integers around a zero are signed in the panel.
        if integers.has_own_mins() {
            add_mins::<V>(integers.by_16, panel, runs, x, p.x_stride, sums);
        }
    }
}

/// Adds minimums times the sums of activations: `sums` holds as many columns as there are, `x` is the chunk of the first column.
///
/// # Safety
/// The CPU has `V`'s instructions and the operands are as large as that.
#[inline(always)]
unsafe fn add_mins<V: IntSimd>(
    by_16: bool,
    panel: &PanelChunk<WideValues>,
    runs: usize,
    x: *const u8,
    x_stride: usize,
    sums: &mut [[f32; PANEL_ROWS]],
) {
    let mut column = 0;
    let mut tiles = sums.chunks_exact_mut(4);
    // SAFETY: the caller's promise.
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

/// [`add_mins`] for `N` columns.
///
/// # Safety
/// As for [`add_mins`].
#[inline(always)]
unsafe fn add_mins_to<V: IntSimd, const N: usize>(
    by_16: bool,
    panel: &PanelChunk<WideValues>,
    runs: usize,
    x: *const u8,
    x_stride: usize,
    sums: &mut [[f32; PANEL_ROWS]],
) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut totals = [[V::Float::splat(0.0); GROUPS]; N];
        for half in (0..2 * runs).step_by(if by_16 { 1 } else { 2 }) {
            let mins = &panel.mins[half];
            let mins = [V::Float::load(mins[0].as_ptr()), V::Float::load(mins[1].as_ptr())];
            for j in 0..N {
                let x = x.add(j * x_stride);
                let of_x = V::Float::splat(sums_at(x, half / 2, if by_16 { 1 + half % 2 } else { 0 }));
                totals[j] = [mins[0].mul_add(of_x, totals[j][0]), mins[1].mul_add(of_x, totals[j][1])];
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

/// What a chunk of activations has in row `row` of its sums, for a run.
///
/// # Safety
/// There is a chunk at `x`.
#[inline(always)]
unsafe fn sums_at(x: *const u8, run: usize, row: usize) -> f32 {
    // SAFETY: the caller's promise; rows are of so many runs.
    unsafe {
        let sums = x.add(offset_of!(I16Chunk, sums)).cast::<f32>();
        sums.add(row * RUNS + run).read_unaligned()
    }
}

/// Writes the sums of panels from row `i` on with columns from `j` on as results.
///
/// # Safety
/// As for [`multiply`].
#[inline(always)]
unsafe fn put_totals<V: IntSimd>(p: &PanelProduct, i: usize, j: usize, totals: &[ColumnSums]) {
    for (column, j) in (j..p.n).take(COLUMNS).enumerate() {
        // SAFETY: the caller's promise; rows and columns lie within the operands.
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

/// [`multiply`] for up to [`COLUMNS`] columns, by the same floating-point operations. Each chunk of a panel is multiplied as soon as it is filled, while it is
/// in the first-level cache.
///
/// # Safety
/// As for [`multiply`].
#[inline(always)]
unsafe fn multiply_few<V: IntSimd>(p: &PanelProduct) {
    // SAFETY: the caller's promise; the scratch memory holds more panels than one, once aligned.
    unsafe {
        let scratch = p.scratch.cast::<u8>();
        let panel = scratch
            .add(scratch.align_offset(ALIGN))
            .cast::<PanelChunk<WideValues>>();
        for i in (0..p.w.m).step_by(PANEL_ROWS) {
            let mut totals = [[0.0; PANEL_ROWS]; COLUMNS];
            for c in 0..p.w.k.div_ceil(CHUNK) {
                fill::<V, WideValues>(&p.w, i, c, &mut *panel);
                add_chunk::<V>(p, &*panel, c, p.x, &mut totals[..p.n]);
            }
            put_totals::<V>(p, i, 0, &[totals]);
        }
    }
}
