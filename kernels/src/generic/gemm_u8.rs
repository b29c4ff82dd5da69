//! Products of weights with many rows of activations, both as bytes.
//!
//! A weight is `scale * w + min` with a signed byte w, an activation `scale * (q - 128)` with an unsigned byte q and one scale for a chunk of 256 (in every other run both have the other sign, see `OFFSET`). So a run of 32
//! adds to an element of the result the sum of `w (q - 128)`, which starts at -128 times the sum of its weights and at `OFFSET`, times the weights' scale, and the weights'
//! minimum times the sum of its activations. Between runs come the activations that are kept aside as floats, times their weights as floats, and at the end of a chunk
//! the activations' scale.
//!
//! Instruction sets with VNNI add up the products of 4 neighbouring bytes at once. The others add up those of 2 in 16 bits, as long as they fit, and then in 32: the sums are the same.
//!
//! Two registers of rows are multiplied with as many columns as have room for their sums, of integers and of floats. Sums of integers are exact; the
//! order in which they are added up as floats only depends on the length of a row.

use std::mem::offset_of;
use std::ops::Range;

use super::integers::{CHUNK, RUN, RUNS};
use super::weight_prefetch::NextWeights;
use super::panel_products::PanelProduct;
use super::pack::{GROUPS, HALVES, Integers, LANES, PANEL_ROWS, PanelChunk, ShiftedValues, SignedValues, fill};
use super::u8_chunks::{ASIDE, CENTER, U8Chunk, sign_of};
use crate::prefetch::{CACHE_LINE, CacheLevel, prefetch};
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
    chunk: PanelChunk<ShiftedValues>,
    /// What sums of integers start at: the bits of [`OFFSET`], less [`CENTER`] times the sum of the weights; or, in 16 bits, the latter alone. For each half of a run if those have scales,
    /// or sums, of their own, else for the whole run, in the place of its first half.
    starts: [[[i32; LANES]; GROUPS]; HALVES],
    /// What sums of floats start at: `-OFFSET` times the sum of the scales, which have the signs of their runs.
    sums: [[f32; LANES]; GROUPS],
}

/// Sums of integers start at the bits of this float, in which the last bit counts 1: as long as they are below 2^22 they are the bits of a float themselves, `OFFSET` plus the
/// sum, and need not be converted. A sum of floats is off by about half of this bit times the scale for each run: some hundredth of what rounding the activations costs. (Scales from 2^100 on, which no
/// model has, give no numbers.)
const OFFSET: f32 = (3 << 22) as f32;
const _: () = assert!(RUN as u64 * 128 * 128 < 1 << 22);

/// The weights of a chunk of [`DOT_ROWS`] rows as floats, by element: those that are multiplied with activations kept aside. They have the signs of their runs, as those do.
type Floats = [[f32; DOT_ROWS]; CHUNK];

/// Runs for each activation kept aside. Their products come between those of the runs: all at once, they would wait for each other.
const RUNS_OF_ASIDE: usize = RUNS / ASIDE;

/// Neighbouring weights that may have a scale of their own, and registers of 4 of them.
const HALF: usize = RUN / 2;
const FOURS_OF_HALF: usize = HALF / 4;

/// Panels of [`DOT_ROWS`] rows.
const PANELS: usize = DOT_ROWS / PANEL_ROWS;

/// Floats of scratch memory for `n` columns.
pub(crate) const fn dot_scratch(n: usize) -> usize {
    let n = if n < MAX_COLUMNS { n } else { MAX_COLUMNS };
    let sums = (MOST_ROWS * n + DOT_ROWS) * size_of::<f32>();
    let bytes = PANELS * size_of::<DotPanel>() + size_of::<Floats>() + sums;
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
        let floats = panels.add(PANELS).cast::<Floats>();
        let sums = floats.add(1).cast::<f32>();
        for c in 0..chunks {
            let aside = Aside::of(p, c);
            let runs = RUNS.min((p.w.k - c * CHUNK) / RUN);
            for i in rows.clone().step_by(step) {
                for panel in 0..step / PANEL_ROWS {
                    let to = &mut *panels.add(panel);
                    let i = i + panel * PANEL_ROWS;
                    if D::ADDS_IN_16_BITS {
                        // Shifted weights would not fit.
                        fill::<V, SignedValues>(&p.w, i, c, &mut *(&raw mut to.chunk).cast());
                    } else {
                        fill::<V, ShiftedValues>(&p.w, i, c, &mut to.chunk);
                    }
                }
                set_starts::<D>(panels.cast(), &p.w.integers, runs);
                aside.unpack::<D>(panels.cast(), &p.w.integers, floats);
                let sums = sums.add((i - rows.start) * p.n);
                let are_all = i + step <= p.w.m;
                let (to, to_stride) = if c + 1 == chunks && are_all {
                    (p.out.add(i), p.out_stride)
                } else {
                    (sums, step)
                };
                let chunk = Chunk {
                    panels: panels.cast(),
                    floats: floats.cast(),
                    integers: p.w.integers,
                    runs,
                    x: p.x.add(c * size_of::<U8Chunk>()),
                    x_stride: p.x_stride,
                    from: if c > 0 { sums } else { std::ptr::null() },
                    to,
                    to_stride,
                    is_first: i == rows.start,
                };
                let (next_i, next_c) = if i + step < rows.end {
                    (i + step, c)
                } else if c + 1 < chunks {
                    (rows.start, c + 1)
                } else {
                    (rows.end, 0)
                };
                let mut next = NextWeights::new(&p.w, next_i, next_c..next_c + 1, step, p.n.div_ceil(D::COLUMNS));
                add_chunk::<D>(&chunk, p.n, &mut next);
                if c + 1 == chunks && !are_all {
                    put::<D>(p, i, sums);
                }
            }
        }
    }
}

/// Sets what sums start at, for the first `runs` runs of [`DotPanel`]s that hold as many rows as are multiplied at a time, and makes scales those of shifted integers.
///
/// # Safety
/// The CPU has `D`'s instructions, and the panels have been filled.
#[inline(always)]
unsafe fn set_starts<D: ByteDots>(panels: *mut u8, integers: &Integers, runs: usize) {
    let stride = const { register_stride::<D>() };
    let halves = if integers.by_16 { 1 } else { 2 };
    let unit = 1.0 / (1u32 << integers.spare_bits()) as f32;
    // SAFETY: the caller's promise; all offsets are those of a panel.
    unsafe {
        for r in 0..REGISTERS {
            let panel = panels.add(r * stride);
            match sums_in_16_bits::<D>(integers) {
                0 => set_starts_of_sums::<D, false>(panel, halves, runs),
                sums => set_starts_of_sums::<D, true>(panel, halves / sums, runs),
            }
            let mut sum = D::Float::splat(0.0);
            for half in (0..2 * runs).step_by(halves) {
                for half in half..half + halves {
                    let scales = panel.add(SCALES + half * PANEL_ROWS * 4).cast::<f32>();
                    D::Float::load(scales)
                        .mul(D::Float::splat(unit * sign_of(half / 2)))
                        .store(scales);
                }
                let scales = D::Float::load(panel.add(SCALES + half * PANEL_ROWS * 4).cast());
                sum = scales.mul_add(D::Float::splat(-OFFSET), sum);
            }
            sum.store(panel.add(offset_of!(DotPanel, sums)).cast());
        }
    }
}

/// Sets what sums of integers start at, which have the weights of so many halves of runs.
///
/// # Safety
/// As for [`set_starts`].
#[inline(always)]
unsafe fn set_starts_of_sums<D: ByteDots, const IN_16_BITS: bool>(panel: *mut u8, halves: usize, runs: usize) {
    // SAFETY: the caller's promise; all offsets are those of a panel.
    unsafe {
        let center = D::broadcast([CENTER; 4].as_ptr());
        for half in (0..2 * runs).step_by(halves) {
            let mut total = D::zero();
            for four in half * FOURS_OF_HALF..(half + halves) * FOURS_OF_HALF {
                let w = D::load(panel.add(four * PANEL_ROWS * 4));
                total = if IN_16_BITS {
                    total.add_byte_pairs(center, w)
                } else {
                    total.add_dots(center, w)
                };
            }
            let starts = panel.add(offset_of!(DotPanel, starts) + half * PANEL_ROWS * 4);
            if IN_16_BITS {
                total.store_negated_words(starts);
            } else {
                total.store_subtracted_from(OFFSET.to_bits(), starts);
            }
        }
    }
}

/// Bytes from a panel to its scales, and to its minimums.
const SCALES: usize = offset_of!(PanelChunk<ShiftedValues>, scales);
const MINIMUMS: usize = offset_of!(PanelChunk<ShiftedValues>, mins);

/// Which elements of a chunk are kept aside in some column: a bit for each.
struct Aside([u64; CHUNK / 64]);

impl Aside {
    /// Those of chunk `c` of all columns.
    ///
    /// # Safety
    /// As for [`multiply`].
    #[inline(always)]
    unsafe fn of(p: &PanelProduct, c: usize) -> Aside {
        // Bytes first, which are only written: a bit would have to wait for the one before.
        let mut are_aside = [0u8; CHUNK];
        for j in 0..p.n {
            let at = j * p.x_stride + c * size_of::<U8Chunk>() + offset_of!(U8Chunk, aside_at);
            // SAFETY: the caller's promise: chunk `c` of column `j`.
            let aside_at = unsafe { p.x.add(at).cast::<[u16; ASIDE]>().read_unaligned() };
            for at in aside_at {
                are_aside[usize::from(at) % CHUNK] = 1;
            }
        }
        let mut words = [0; CHUNK / 64];
        for (i, eight) in are_aside.as_chunks::<8>().0.iter().enumerate() {
            // The product has bit `j` of the sum's highest byte from byte `j`.
            let bits = u64::from_le_bytes(*eight).wrapping_mul(0x0102_0408_1020_4080) >> 56;
            words[i / 8] |= bits << (i % 8 * 8);
        }
        Aside(words)
    }

    /// Writes the weights of these elements as floats, with the signs of their runs.
    ///
    /// # Safety
    /// The CPU has `D`'s instructions, and the panels' values and scales are set.
    #[inline(always)]
    unsafe fn unpack<D: ByteDots>(&self, panels: *const u8, integers: &Integers, to: *mut Floats) {
        // The product of 4 weights with one of these is one of the weights.
        const BYTES: [[u8; 4]; 4] = [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]];
        let in_16_bits = sums_in_16_bits::<D>(integers) > 0;
        for (word, &bits) in self.0.iter().enumerate() {
            let mut bits = bits;
            while bits != 0 {
                let k = 64 * word + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                for r in 0..REGISTERS {
                    let of_half = k / HALF * PANEL_ROWS * size_of::<f32>();
                    // SAFETY: the caller's promise; `k` lies within a chunk.
                    unsafe {
                        let panel = panels.add(r * const { register_stride::<D>() });
                        let four = D::load(panel.add(k / 4 * PANEL_ROWS * 4));
                        let one = D::broadcast(BYTES[k % 4].as_ptr());
                        let w = if in_16_bits {
                            let w = D::zero().add_byte_pairs(one, four);
                            D::zero().add_pair_dots(w, D::words(shift(integers)))
                        } else {
                            D::zero().add_dots(one, four)
                        };
                        let w = w.floats();
                        let scale = D::Float::load(panel.add(SCALES + of_half).cast());
                        let w = if integers.has_own_mins() {
                            let min = D::Float::load(panel.add(MINIMUMS + of_half).cast());
                            w.mul_add(scale, min.mul(D::Float::splat(sign_of(k / RUN))))
                        } else {
                            w.mul(scale)
                        };
                        w.store((&raw mut (*to)[k]).cast::<f32>().add(r * D::Float::LANES));
                    }
                }
            }
        }
    }
}

/// A chunk of some rows and of all columns.
struct Chunk {
    /// [`DotPanel`]s.
    panels: *const u8,
    /// [`Floats`].
    floats: *const f32,
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
    /// Whether the columns' chunk is read for the first time, presumably from beyond the second-level cache.
    is_first: bool,
}

/// Adds the product of a chunk with `n` columns.
///
/// # Safety
/// As for [`multiply`].
#[inline(always)]
unsafe fn add_chunk<D: ByteDots>(chunk: &Chunk, n: usize, next: &mut NextWeights) {
    let (by_16, mins) = (chunk.integers.by_16, chunk.integers.has_own_mins());
    // SAFETY: the caller's promise.
    unsafe {
        match sums_in_16_bits::<D>(&chunk.integers) {
            1 if const { D::ADDS_IN_16_BITS } => match (by_16, mins) {
                (false, false) => add_all::<D, false, false, 1>(chunk, n, next),
                (false, true) => add_all::<D, false, true, 1>(chunk, n, next),
                (true, false) => add_all::<D, true, false, 1>(chunk, n, next),
                (true, true) => add_all::<D, true, true, 1>(chunk, n, next),
            },
            2 if const { D::ADDS_IN_16_BITS } => match mins {
                false => add_all::<D, false, false, 2>(chunk, n, next),
                true => add_all::<D, false, true, 2>(chunk, n, next),
            },
            _ => match (by_16, mins) {
                (false, false) => add_all::<D, false, false, 0>(chunk, n, next),
                (false, true) => add_all::<D, false, true, 0>(chunk, n, next),
                (true, false) => add_all::<D, true, false, 0>(chunk, n, next),
                (true, true) => add_all::<D, true, true, 0>(chunk, n, next),
            },
        }
    }
}

/// How many sums of 16 bits the products that have one scale take; 0 if they are added up in 32 bits.
#[inline(always)]
fn sums_in_16_bits<D: ByteDots>(integers: &Integers) -> usize {
    match integers.sums_of_16_bits() {
        _ if !D::ADDS_IN_16_BITS => 0,
        n if integers.by_16 => n.min(1),
        n => n,
    }
}

/// What shifts integers that were not shifted when they were put into the panel.
const fn shift(integers: &Integers) -> i16 {
    1 << integers.spare_bits()
}

/// [`add_chunk`], about as many columns at a time as there are registers for: a few left over would wait for each of their sums.
///
/// # Safety
/// As for [`multiply`].
#[inline(always)]
unsafe fn add_all<D: ByteDots, const BY_16: bool, const MINS: bool, const SUMS: usize>(
    chunk: &Chunk,
    n: usize,
    next: &mut NextWeights,
) {
    let most = const { columns_at_once::<D, SUMS>() };
    let tiles = n.div_ceil(most);
    let (columns, larger) = (n / tiles, n % tiles);
    let mut j = 0;
    for (columns, tiles) in [(columns + 1, larger), (columns, tiles - larger)] {
        let end = j + columns * tiles;
        // SAFETY: the caller's promise.
        unsafe {
            match columns {
                1 => add_tiles::<D, BY_16, MINS, SUMS, 1>(chunk, j..end, next),
                2 if const { columns_at_once::<D, SUMS>() >= 2 } => {
                    add_tiles::<D, BY_16, MINS, SUMS, 2>(chunk, j..end, next)
                }
                3 if const { columns_at_once::<D, SUMS>() >= 3 } => {
                    add_tiles::<D, BY_16, MINS, SUMS, 3>(chunk, j..end, next)
                }
                4 if const { columns_at_once::<D, SUMS>() >= 4 } => {
                    add_tiles::<D, BY_16, MINS, SUMS, 4>(chunk, j..end, next)
                }
                5 if const { columns_at_once::<D, SUMS>() >= 5 } => {
                    add_tiles::<D, BY_16, MINS, SUMS, 5>(chunk, j..end, next)
                }
                6 if const { columns_at_once::<D, SUMS>() >= 6 } => {
                    add_tiles::<D, BY_16, MINS, SUMS, 6>(chunk, j..end, next)
                }
                7 if const { columns_at_once::<D, SUMS>() >= 7 } => {
                    add_tiles::<D, BY_16, MINS, SUMS, 7>(chunk, j..end, next)
                }
                // One more than fits where all tiles have the same width: there is no larger one.
                _ => {}
            }
        }
        j = end;
    }
}

/// Columns that are multiplied at a time. One is enough where 16 bits do not hold the sums: products of such weights take another form of activations where speed matters.
const fn columns_at_once<D: ByteDots, const SUMS: usize>() -> usize {
    if SUMS == 0 && D::ADDS_IN_16_BITS { 1 } else { D::COLUMNS }
}

/// [`add_chunk`] for some columns, `C` at a time.
///
/// # Safety
/// As for [`multiply`].
#[inline(always)]
unsafe fn add_tiles<D: ByteDots, const BY_16: bool, const MINS: bool, const SUMS: usize, const C: usize>(
    chunk: &Chunk,
    columns: Range<usize>,
    next: &mut NextWeights,
) {
    for j in columns.step_by(C) {
        next.fetch();
        // SAFETY: the caller's promise.
        unsafe { add::<D, BY_16, MINS, SUMS, C>(chunk, j) };
    }
}

/// [`add_chunk`] for `C` columns from `j` on. `BY_16`: halves of runs have scales of their own; `MINS`: weights have minimums; `SUMS`: see [`sums_in_16_bits`].
///
/// # Safety
/// As for [`multiply`].
#[inline(always)]
unsafe fn add<D: ByteDots, const BY_16: bool, const MINS: bool, const SUMS: usize, const C: usize>(
    chunk: &Chunk,
    j: usize,
) {
    let lanes = D::Float::LANES;
    let fours = if BY_16 { FOURS_OF_HALF } else { 2 * FOURS_OF_HALF };
    // SAFETY: the caller's promise; all offsets are those of a panel and of a chunk of activations.
    unsafe {
        let x = chunk.x.add(j * chunk.x_stride);
        let mut sums = [of_rows::<D>(chunk, offset_of!(DotPanel, sums), 0); C];
        for run in 0..chunk.runs {
            if chunk.is_first {
                fetch_next::<C>(x, chunk.x_stride, run);
            }
            for part in 0..if BY_16 { 2 } else { 1 } {
                let half = 2 * run + part;
                let w = chunk.panels.add(half * FOURS_OF_HALF * PANEL_ROWS * 4);
                let q = x.add(offset_of!(U8Chunk, values) + half * HALF);
                let starts = chunk.panels.add(offset_of!(DotPanel, starts) + half * PANEL_ROWS * 4);
                let totals = if SUMS == 0 {
                    dots::<D, C>(w, q, chunk.x_stride, fours, starts)
                } else {
                    let shift = D::words(shift(&chunk.integers));
                    dots_in_16_bits::<D, SUMS, C>(w, q, chunk.x_stride, fours, starts, shift)
                };
                let scales = of_rows::<D>(chunk, SCALES, half);
                for c in 0..C {
                    for r in 0..REGISTERS {
                        sums[c][r] = totals[c][r].float_bits().mul_add(scales[r], sums[c][r]);
                    }
                }
                if MINS {
                    let mins = of_rows::<D>(chunk, MINIMUMS, half);
                    let row = if BY_16 { 1 + part } else { 0 };
                    let at = offset_of!(U8Chunk, sums) + (row * RUNS + run) * size_of::<f32>();
                    for c in 0..C {
                        let of_x = of_column::<D>(x.add(c * chunk.x_stride + at));
                        for r in 0..REGISTERS {
                            sums[c][r] = mins[r].mul_add(of_x, sums[c][r]);
                        }
                    }
                }
            }
            if run.is_multiple_of(RUNS_OF_ASIDE) {
                add_aside::<D, C>(chunk, x, run / RUNS_OF_ASIDE, &mut sums);
            }
        }
        for i in chunk.runs.div_ceil(RUNS_OF_ASIDE)..ASIDE {
            add_aside::<D, C>(chunk, x, i, &mut sums);
        }
        for c in 0..C {
            let scale = of_column::<D>(x.add(c * chunk.x_stride + offset_of!(U8Chunk, scale)));
            for r in 0..REGISTERS {
                sums[c][r] = if chunk.from.is_null() {
                    sums[c][r].mul(scale)
                } else {
                    let from = D::Float::load(chunk.from.add(((j + c) * REGISTERS + r) * lanes));
                    sums[c][r].mul_add(scale, from)
                };
            }
        }
        for c in 0..C {
            for r in 0..REGISTERS {
                sums[c][r].store(chunk.to.add((j + c) * chunk.to_stride + r * lanes));
            }
        }
    }
}

/// Asks for cache line `i` of a chunk of the `C` columns after those from `x` on. A chunk has at most as many lines as runs.
#[inline(always)]
fn fetch_next<const C: usize>(x: *const u8, x_stride: usize, i: usize) {
    const { assert!(size_of::<U8Chunk>() <= RUNS * CACHE_LINE) };
    for c in C..2 * C {
        prefetch(x.wrapping_add(c * x_stride + i * CACHE_LINE), CacheLevel::First);
    }
}

/// Adds the products of activation `i` of those kept aside, of columns from `x` on.
///
/// # Safety
/// As for [`multiply`].
#[inline(always)]
unsafe fn add_aside<D: ByteDots, const C: usize>(
    chunk: &Chunk,
    x: *const u8,
    i: usize,
    sums: &mut [[D::Float; REGISTERS]; C],
) {
    for c in 0..C {
        // SAFETY: the caller's promise; places lie within a chunk.
        unsafe {
            let x = x.add(c * chunk.x_stride);
            let at = x.add(offset_of!(U8Chunk, aside_at) + i * size_of::<u16>());
            let at = at.cast::<u16>().read_unaligned();
            let w = chunk.floats.add(usize::from(at) * DOT_ROWS);
            let x = of_column::<D>(x.add(offset_of!(U8Chunk, aside) + i * size_of::<f32>()));
            for r in 0..REGISTERS {
                sums[c][r] = D::Float::load(w.add(r * D::Float::LANES)).mul_add(x, sums[c][r]);
            }
        }
    }
}

/// Sums of integers from `starts` on, as the bits of floats, for so many groups of 4 bytes from `w` and `q` on.
///
/// # Safety
/// As for [`multiply`].
#[inline(always)]
unsafe fn dots<D: ByteDots, const C: usize>(
    w: *const u8,
    q: *const u8,
    q_stride: usize,
    fours: usize,
    starts: *const u8,
) -> [[D; REGISTERS]; C] {
    // SAFETY: the caller's promise.
    unsafe {
        let mut totals = [both_registers::<D>(starts); C];
        for four in 0..fours {
            let w = both_registers::<D>(w.add(four * PANEL_ROWS * 4));
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

/// The same sums as those of [`dots`], by way of `SUMS` sums of 16 bits. `shift` is what they lack because the weights were not shifted.
///
/// # Safety
/// As for [`multiply`].
#[inline(always)]
unsafe fn dots_in_16_bits<D: ByteDots, const SUMS: usize, const C: usize>(
    w: *const u8,
    q: *const u8,
    q_stride: usize,
    fours: usize,
    starts: *const u8,
    shift: D,
) -> [[D; REGISTERS]; C] {
    let fours = fours / SUMS;
    // SAFETY: the caller's promise.
    unsafe {
        let mut totals = [[D::broadcast(OFFSET.to_bits().to_ne_bytes().as_ptr()); REGISTERS]; C];
        for i in 0..SUMS {
            let mut sums = [both_registers::<D>(starts.add(i * PANEL_ROWS * 4)); C];
            // In two loops, of which the compiler unrolls the inner one.
            for at in (i * fours..(i + 1) * fours).step_by(FOURS_OF_HALF) {
                for four in at..at + FOURS_OF_HALF {
                    let w = both_registers::<D>(w.add(four * PANEL_ROWS * 4));
                    for c in 0..C {
                        let q = D::broadcast(q.add(c * q_stride + four * 4));
                        for r in 0..REGISTERS {
                            sums[c][r] = sums[c][r].add_byte_pairs(q, w[r]);
                        }
                        sums[c] = D::both(sums[c]);
                    }
                }
            }
            for c in 0..C {
                for r in 0..REGISTERS {
                    totals[c][r] = totals[c][r].add_pair_dots(sums[c][r], shift);
                }
            }
        }
        totals
    }
}

/// What the panels have for both registers of rows at `p`.
///
/// # Safety
/// As for [`multiply`].
#[inline(always)]
unsafe fn both_registers<D: ByteDots>(p: *const u8) -> [D; REGISTERS] {
    // SAFETY: the caller's promise.
    unsafe { [D::load(p), D::load(p.add(const { register_stride::<D>() }))] }
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

/// A float of a column in each lane.
///
/// # Safety
/// As for [`multiply`].
#[inline(always)]
unsafe fn of_column<D: ByteDots>(x: *const u8) -> D::Float {
    // SAFETY: the caller's promise.
    unsafe { D::Float::splat(x.cast::<f32>().read_unaligned()) }
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
