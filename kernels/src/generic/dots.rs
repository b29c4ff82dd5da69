//! Products of weights with many rows of activations, both as bytes, for instruction sets that add up the products of 4 neighbouring bytes at once (VNNI).
//!
//! A weight is `scale * w + min` with a signed byte w, an activation `scale * q + min` with an unsigned one. So a run of 32 adds to an element of the result
//! the sum of `w q` times both scales, the sum of its weights times the activations' minimum, and the weights' minimum times the sum of its activations.
//!
//! Two registers of rows are multiplied with as many columns as have room for their sums, of integers and of floats. Sums of integers are exact; the
//! order in which they are added up as floats only depends on the length of a row.

use std::mem::offset_of;
use std::ops::Range;

use super::integers::{CHUNK, RUN, RUNS};
use super::panel_products::PanelProduct;
use super::panels::{GROUPS, Integers, LANES, PANEL_ROWS, PanelChunk, SignedValues, fill};
use super::u8_blocks::U8Chunk;
use crate::simd::dots::ByteDots;
use crate::simd::{IntSimd, Simd};

/// Registers of rows.
const REGISTERS: usize = 2;

/// Most rows of weights that are multiplied at a time: those of two registers of 512 bits.
pub(crate) const DOT_ROWS: usize = 32;

/// Rows of weights that are multiplied with the same chunks of the columns, which stay in the second-level cache meanwhile, together with the sums.
const MOST_ROWS: usize = 256;

/// Most columns that are multiplied at a time, for the same reason.
const MAX_COLUMNS: usize = 512;

/// Bytes to whose multiples panels are aligned.
const ALIGN: usize = 64;

/// A chunk of [`PANEL_ROWS`] rows.
#[repr(C, align(64))]
struct DotPanel {
    chunk: PanelChunk<SignedValues>,
    /// The sums of each run's weights, without minimums.
    sums: [[[f32; LANES]; GROUPS]; RUNS],
}

/// Panels of [`DOT_ROWS`] rows.
const PANELS: usize = DOT_ROWS / PANEL_ROWS;

/// Floats of scratch memory for `n` columns.
pub(crate) const fn dot_scratch(n: usize) -> usize {
    let n = if n < MAX_COLUMNS { n } else { MAX_COLUMNS };
    let bytes = PANELS * size_of::<DotPanel>() + (MOST_ROWS * n + DOT_ROWS) * size_of::<f32>();
    (bytes + ALIGN) / size_of::<f32>()
}

/// Rows that are multiplied at a time.
const fn rows_of<D: ByteDots>() -> usize {
    REGISTERS * D::Float::LANES
}

/// Bytes from what a panel has for the first register to what it has for the next one.
const fn register_stride<D: ByteDots>() -> usize {
    if D::Float::LANES == PANEL_ROWS {
        size_of::<DotPanel>()
    } else {
        LANES * size_of::<f32>()
    }
}

/// Multiplies. `V` unpacks weights, `D` multiplies them.
///
/// # Safety
/// The CPU has the instructions of both and `p` keeps the contract of [`matmul`](crate::matmul()).
#[inline(always)]
pub(crate) unsafe fn multiply<V: IntSimd, D: ByteDots>(p: &PanelProduct) {
    let n_parts = p.n.div_ceil(MAX_COLUMNS);
    let columns = p.n.div_ceil(n_parts);
    for j in (0..p.n).step_by(columns) {
        for i in (0..p.w.m).step_by(MOST_ROWS) {
            // SAFETY: the caller's promise; rows and columns lie within the operands.
            unsafe {
                let part = PanelProduct {
                    x: p.x.add(j * p.x_stride),
                    n: columns.min(p.n - j),
                    out: p.out.add(j * p.out_stride),
                    ..*p
                };
                multiply_rows::<V, D>(&part, i..p.w.m.min(i + MOST_ROWS));
            }
        }
    }
}

/// [`multiply`] for at most [`MOST_ROWS`] rows and [`MAX_COLUMNS`] columns.
///
/// # Safety
/// As for [`multiply`].
#[inline(always)]
unsafe fn multiply_rows<V: IntSimd, D: ByteDots>(p: &PanelProduct, rows: Range<usize>) {
    let chunks = p.w.k.div_ceil(CHUNK);
    let step = const { rows_of::<D>() };
    // SAFETY: the caller's promise; the scratch memory holds the panels and the sums, once aligned.
    unsafe {
        let scratch = p.scratch.cast::<u8>();
        let panels = scratch.add(scratch.align_offset(ALIGN)).cast::<DotPanel>();
        let sums = panels.add(PANELS).cast::<f32>();
        for c in 0..chunks {
            for i in rows.clone().step_by(step) {
                for panel in 0..step / PANEL_ROWS {
                    fill_panel::<V>(p, i + panel * PANEL_ROWS, c, &mut *panels.add(panel));
                }
                let sums = sums.add((i - rows.start) * p.n);
                let are_all = i + step <= p.w.m;
                let (to, to_stride) = if c + 1 == chunks && are_all {
                    (p.out.add(i), p.out_stride)
                } else {
                    (sums, step)
                };
                let chunk = Chunk {
                    panels: panels.cast(),
                    integers: p.w.integers,
                    runs: RUNS.min((p.w.k - c * CHUNK) / RUN),
                    x: p.x.add(c * size_of::<U8Chunk>()),
                    x_stride: p.x_stride,
                    from: if c > 0 { sums } else { std::ptr::null() },
                    to,
                    to_stride,
                };
                add_chunk::<D>(&chunk, p.n);
                if c + 1 == chunks && !are_all {
                    put::<D>(p, i, sums);
                }
            }
        }
    }
}

/// Fills a panel with rows from row `i` on, chunk `c` of each.
///
/// # Safety
/// As for [`multiply`].
#[inline(always)]
unsafe fn fill_panel<V: IntSimd>(p: &PanelProduct, i: usize, c: usize, to: &mut DotPanel) {
    const FOURS_OF_HALF: usize = RUN / 8;
    // SAFETY: the caller's promise; what is read was just filled.
    unsafe {
        fill::<V, SignedValues>(&p.w, i, c, &mut to.chunk);
        for run in 0..RUNS.min((p.w.k - c * CHUNK) / RUN) {
            for group in 0..GROUPS {
                let mut sum = V::Float::splat(0.0);
                for half in 2 * run..2 * run + 2 {
                    let mut total = V::splat(0);
                    for four in 0..FOURS_OF_HALF {
                        let values = &to.chunk.values.0[half * FOURS_OF_HALF + four][group];
                        total = total.add_fours(V::splat(1), V::load(values.as_ptr()));
                    }
                    let scale = V::Float::load(to.chunk.scales[half][group].as_ptr());
                    sum = total.to_floats().mul_add(scale, sum);
                }
                sum.store(to.sums[run][group].as_mut_ptr());
            }
        }
    }
}

/// A chunk of some rows and of all columns.
struct Chunk {
    /// [`DotPanel`]s.
    panels: *const u8,
    integers: Integers,
    /// Runs that there are.
    runs: usize,
    /// That of the first column.
    x: *const u8,
    x_stride: usize,
    /// The sums of all rows with the first column, then with the others; null for zeros.
    from: *const f32,
    /// Where they are written, `to_stride` floats apart.
    to: *mut f32,
    to_stride: usize,
}

/// Adds the product of a chunk with `n` columns.
///
/// # Safety
/// As for [`multiply`].
#[inline(always)]
unsafe fn add_chunk<D: ByteDots>(chunk: &Chunk, n: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        match (chunk.integers.by_16, chunk.integers.has_own_mins()) {
            (false, false) => add_all::<D, false, false>(chunk, n),
            (false, true) => add_all::<D, false, true>(chunk, n),
            (true, false) => add_all::<D, true, false>(chunk, n),
            (true, true) => add_all::<D, true, true>(chunk, n),
        }
    }
}

/// [`add_chunk`], as many columns at a time as there are registers for.
///
/// # Safety
/// As for [`multiply`].
#[inline(always)]
unsafe fn add_all<D: ByteDots, const BY_16: bool, const MINS: bool>(chunk: &Chunk, n: usize) {
    let mut j = 0;
    // SAFETY: the caller's promise.
    unsafe {
        if const { D::COLUMNS == 6 } {
            while n - j >= 6 {
                add::<D, BY_16, MINS, 6>(chunk, j);
                j += 6;
            }
        }
        while n - j >= 4 {
            add::<D, BY_16, MINS, 4>(chunk, j);
            j += 4;
        }
        match n - j {
            3 => add::<D, BY_16, MINS, 3>(chunk, j),
            2 => add::<D, BY_16, MINS, 2>(chunk, j),
            1 => add::<D, BY_16, MINS, 1>(chunk, j),
            _ => {}
        }
    }
}

/// [`add_chunk`] for `C` columns from `j` on. `BY_16`: halves of runs have scales of their own; `MINS`: weights have minimums.
///
/// # Safety
/// As for [`multiply`].
#[inline(always)]
unsafe fn add<D: ByteDots, const BY_16: bool, const MINS: bool, const C: usize>(chunk: &Chunk, j: usize) {
    let lanes = D::Float::LANES;
    let stride = const { register_stride::<D>() };
    let fours = if BY_16 { RUN / 8 } else { RUN / 4 };
    // SAFETY: the caller's promise; all offsets are those of a panel and of a chunk of activations.
    unsafe {
        let x = chunk.x.add(j * chunk.x_stride);
        let mut sums = [[D::Float::splat(0.0); REGISTERS]; C];
        if !chunk.from.is_null() {
            for c in 0..C {
                for r in 0..REGISTERS {
                    sums[c][r] = D::Float::load(chunk.from.add(((j + c) * REGISTERS + r) * lanes));
                }
            }
        }
        for run in 0..chunk.runs {
            for part in 0..if BY_16 { 2 } else { 1 } {
                let half = 2 * run + part;
                let w = chunk.panels.add(half * (RUN / 8) * PANEL_ROWS * 4);
                let q = x.add(offset_of!(U8Chunk, values) + half * (RUN / 2));
                let totals = dots::<D, C>(w, stride, q, chunk.x_stride, fours);
                let scales = of_rows::<D>(chunk, offset_of!(PanelChunk<SignedValues>, scales), half);
                for c in 0..C {
                    let scale = of_column::<D>(x.add(c * chunk.x_stride), offset_of!(U8Chunk, scales), run);
                    for r in 0..REGISTERS {
                        sums[c][r] = totals[c][r].floats().mul_add(scales[r].mul(scale), sums[c][r]);
                    }
                }
                if MINS {
                    let mins = of_rows::<D>(chunk, offset_of!(PanelChunk<SignedValues>, mins), half);
                    let row = if BY_16 { 1 + part } else { 0 };
                    let at = offset_of!(U8Chunk, sums) + row * RUNS * size_of::<f32>();
                    add_outer::<D, C>(mins, x.wrapping_add(at), chunk.x_stride, run, &mut sums);
                }
            }
            let of_weights = of_rows::<D>(chunk, offset_of!(DotPanel, sums), run);
            let mins = x.wrapping_add(offset_of!(U8Chunk, mins));
            add_outer::<D, C>(of_weights, mins, chunk.x_stride, run, &mut sums);
        }
        for c in 0..C {
            for r in 0..REGISTERS {
                sums[c][r].store(chunk.to.add((j + c) * chunk.to_stride + r * lanes));
            }
        }
    }
}

/// Sums of integers, for so many groups of 4 bytes from `w` and `q` on.
///
/// # Safety
/// As for [`multiply`].
#[inline(always)]
unsafe fn dots<D: ByteDots, const C: usize>(
    w: *const u8,
    w_stride: usize,
    q: *const u8,
    q_stride: usize,
    fours: usize,
) -> [[D; REGISTERS]; C] {
    // SAFETY: the caller's promise.
    unsafe {
        let mut totals = [[D::zero(); REGISTERS]; C];
        for four in 0..fours {
            let w = w.add(four * PANEL_ROWS * 4);
            let w = [D::load(w), D::load(w.add(w_stride))];
            for c in 0..C {
                let q = D::broadcast(q.add(c * q_stride + four * 4));
                for r in 0..REGISTERS {
                    totals[c][r] = totals[c][r].add_dots(q, w[r]);
                }
            }
        }
        totals
    }
}

/// Floats `i` of the rows in the array at `offset` of their panels.
///
/// # Safety
/// As for [`multiply`].
#[inline(always)]
unsafe fn of_rows<D: ByteDots>(chunk: &Chunk, offset: usize, i: usize) -> [D::Float; REGISTERS] {
    // SAFETY: the caller's promise.
    unsafe {
        let p = chunk.panels.add(offset + i * PANEL_ROWS * size_of::<f32>());
        [
            D::Float::load(p.cast()),
            D::Float::load(p.add(const { register_stride::<D>() }).cast()),
        ]
    }
}

/// Float `i` of the array at `offset` of a chunk of a column, in each lane.
///
/// # Safety
/// As for [`multiply`].
#[inline(always)]
unsafe fn of_column<D: ByteDots>(x: *const u8, offset: usize, i: usize) -> D::Float {
    // SAFETY: the caller's promise.
    unsafe { D::Float::splat(x.add(offset).cast::<f32>().add(i).read_unaligned()) }
}

/// Adds the outer product of a number of each row and one of each column, float `i` at `x`.
///
/// # Safety
/// As for [`multiply`].
#[inline(always)]
unsafe fn add_outer<D: ByteDots, const C: usize>(
    of_rows: [D::Float; REGISTERS],
    x: *const u8,
    x_stride: usize,
    i: usize,
    sums: &mut [[D::Float; REGISTERS]; C],
) {
    for c in 0..C {
        // SAFETY: the caller's promise.
        let of_x = unsafe { of_column::<D>(x.wrapping_add(c * x_stride), 0, i) };
        for r in 0..REGISTERS {
            sums[c][r] = of_rows[r].mul_add(of_x, sums[c][r]);
        }
    }
}

/// Writes the sums of the last rows, from row `i` on, as results.
///
/// # Safety
/// As for [`multiply`].
#[inline(always)]
unsafe fn put<D: ByteDots>(p: &PanelProduct, i: usize, sums: *const f32) {
    let rows = const { rows_of::<D>() };
    for j in 0..p.n {
        // SAFETY: the caller's promise; rows and columns lie within the operands.
        unsafe {
            let (from, out) = (sums.add(j * rows), p.out.add(j * p.out_stride + i));
            for at in (0..rows.min(p.w.m - i)).step_by(D::Float::LANES) {
                let sums = D::Float::load(from.add(at));
                if i + at + D::Float::LANES <= p.w.m {
                    sums.store(out.add(at));
                } else {
                    sums.store_partial(out.add(at), p.w.m - i - at);
                }
            }
        }
    }
}
