//! GEMM of 8-bit weights and 8-bit activations ([`U8Chunk`]) for many columns.
//!
//! `vpdpbusd` multiplies 4 unsigned bytes by 4 signed bytes in each 32-bit lane and adds the products. One
//! instruction serves 8 or 16 rows of weights. The rest of this module keeps that instruction busy. Weights are
//! unpacked once for up to 512 columns, operands stay in the L1 and L2 caches, and sums in registers.
//!
//! ```text
//! weight       w = scale[run] * q_w + min[run]      q_w: signed byte, 8 runs of 32 per chunk
//! activation   x ~ scale_x * (q - 128)              q: unsigned byte, one scale per chunk of 256
//!
//! a register tile, whose sums stay in registers for a whole chunk:
//!
//!                   column 0   column 1   ..   column C-1
//!                 +----------+----------+----+------------+
//! register 0      | acc[0,0] | acc[0,1] | .. | acc[0,C-1] |      8 or 16 rows of weights, one per lane
//! register 1      | acc[1,0] | acc[1,1] | .. | acc[1,C-1] |      the next 8 or 16 rows
//!                 +----------+----------+----+------------+
//! ```
//!
//! # Loop
//!
//! ```text
//! for 512 columns, for 256 rows:                    # the columns' chunks and the sums stay in L2
//!     for chunk c in 0..k/256:
//!         for i in rows, step 16 or 32:             # two registers of rows
//!             fill panels with chunk c of the rows  # see `pack`
//!             starts[run] = bits(OFFSET) - 128 * sum(w of run)
//!             outlier_weights = f32 weights at the outliers of any column
//!             for tile of C columns:
//!                 acc = -OFFSET * sum(scales)
//!                 for run in 0..8:
//!                     total = starts[run]           # i32
//!                     for word in 0..8:
//!                         total += dot4(q[column][word], w[word])
//!                     acc += bitcast_f32(total) * scale[run] + min[run] * sum(x of run)
//!                     every 2nd run: acc += outlier_weight * outlier
//!                 out += acc * scale_x[column]
//! ```
//!
//! # Optimizations
//!
//! 1. *No conversions.* [`OFFSET`] is a float whose lowest mantissa bit counts 1. An i32 sum that starts at
//!    its bits ends at the bits of the float `OFFSET + sum`. Starting `acc` at `-OFFSET * sum(scales)` removes
//!    the offset.
//! 2. *Alternating signs.* Odd runs store the negated activations and scales ([`sign_of`]). The scales then
//!    nearly cancel in `sum(scales)`, and so does the rounding error of optimization 1.
//! 3. *Outliers.* The f32 products of the four outliers of a chunk are spread between its runs. Computed
//!    together they would be a chain of dependent additions.
//! 4. *Without VNNI*, `vpmaddubsw` adds pairs in 16 bits while that is exact, then `vpmaddwd` adds them in 32
//!    bits. The sums are the same.
//!
//! # Limits
//!
//! - With few columns, unpacking the weights takes longer than the products. `matmul` selects this module from
//!   [`FAST_COLUMNS`](crate::FAST_COLUMNS) columns on.
//! - Optimization 1 needs sums of a run below 2^22, which 32 products of bytes satisfy, and scales below 2^100.
//! - Integer sums are exact. The order of the float additions depends only on `k`, so a result has the same
//!   bits however rows and columns are split.

use std::mem::offset_of;
use std::ops::Range;

use super::pack::{GROUPS, I8Values, IntFormat, PANEL_ROWS, PanelChunk, ShiftedI8Values, fill};
use super::panel_products::PanelProduct;
use super::u8_chunks::{N_OUTLIERS, U8Chunk, ZERO_POINT, sign_of};
use super::weight_prefetch::WeightPrefetcher;
use crate::layout::groups::LANES;
use crate::layout::runs::{CHUNK, HALVES, RUN, RUNS};
use crate::prefetch::{CACHE_LINE, CacheLevel, prefetch};
use crate::simd::dots::ByteDots;
use crate::simd::{IntSimd, Simd};

/// Registers of rows that are multiplied at a time.
const REGISTERS: usize = 2;

/// Maximum rows multiplied at a time: two 512-bit registers.
pub(crate) const DOT_ROWS: usize = 32;

/// Rows multiplied by the same chunks of the columns. These chunks and the sums stay in the L2 cache.
const MAX_ROWS: usize = 256;

/// Maximum columns multiplied by the same rows, for the same reason.
const MAX_COLUMNS: usize = 512;

/// Alignment of panels in bytes.
const ALIGN: usize = 64;

/// A chunk of [`PANEL_ROWS`] rows.
#[repr(C, align(64))]
struct DotPanel {
    chunk: PanelChunk<ShiftedI8Values>,
    /// Initial values of the integer sums: the bits of [`OFFSET`] minus [`ZERO_POINT`] times the sum of the
    /// weights. Sums in 16 bits omit the bits of `OFFSET`. There is one value per half run if halves have
    /// their own scales or sums. Otherwise the value of the run is at its first half.
    starts: [[[i32; LANES]; GROUPS]; HALVES],
    /// Initial values of the float sums: `-OFFSET` times the sum of the scales, which have the signs of their
    /// runs.
    sums: [[f32; LANES]; GROUPS],
}

/// Float whose bits are the initial value of integer sums.
///
/// The lowest mantissa bit of this float counts 1. While a sum is below 2^22, the bits are those of the float `OFFSET +
/// sum`, which needs no conversion. The rounding error is about half of that bit times the scale for each run, roughly
/// a hundredth of the error from quantizing the activations. Scales of 2^100 or more would overflow to NaN; no known
/// model has scales of this size.
const OFFSET: f32 = (3 << 22) as f32;
const _: () = assert!(RUN as u64 * 128 * 128 < 1 << 22);

/// f32 weights of a chunk of [`DOT_ROWS`] rows, by element. Only the elements that are an outlier of some
/// column are set. They have the signs of their runs.
type OutlierWeights = [[f32; DOT_ROWS]; CHUNK];

/// Runs between two outlier products. Computing all outliers together would form a chain of dependent
/// additions.
const RUNS_PER_OUTLIER: usize = RUNS / N_OUTLIERS;

/// Adjacent weights that may have their own scale, and the number of 4-weight words in them.
const HALF: usize = RUN / 2;
const WORDS_PER_HALF: usize = HALF / 4;

/// Number of panels for [`DOT_ROWS`] rows.
const PANELS: usize = DOT_ROWS / PANEL_ROWS;

/// Returns the scratch memory in floats for `n` columns.
pub(crate) const fn dot_scratch(n: usize) -> usize {
    let n = if n < MAX_COLUMNS { n } else { MAX_COLUMNS };
    let sums = (MAX_ROWS * n + DOT_ROWS) * size_of::<f32>();
    let bytes = PANELS * size_of::<DotPanel>() + size_of::<OutlierWeights>() + sums;
    (bytes + ALIGN) / size_of::<f32>()
}

/// Returns the number of rows multiplied at a time.
const fn rows_of<D: ByteDots>() -> usize {
    REGISTERS * D::Float::LANES
}

/// Returns the distance in bytes between the parts of a panel for the first and the second register.
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
/// - The CPU supports `V` and `D`.
/// - `p` satisfies the invariants of [`PanelProduct`] for [`U8Chunk`] activations, and its scratch memory has
///   [`dot_scratch`] floats.
#[inline(always)]
pub(crate) unsafe fn multiply<V: IntSimd, D: ByteDots>(p: &PanelProduct) {
    let n_parts = p.n.div_ceil(MAX_COLUMNS);
    let columns = p.n.div_ceil(n_parts);
    for j in (0..p.n).step_by(columns) {
        for i in (0..p.w.m).step_by(MAX_ROWS) {
            // SAFETY: columns `j..j + n` are below `p.n` and rows below `p.w.m`, so `part` satisfies the
            // invariants of `PanelProduct`.
            unsafe {
                let part = PanelProduct {
                    x: p.x.add(j * p.x_stride),
                    n: columns.min(p.n - j),
                    out: p.out.add(j * p.out_stride),
                    ..*p
                };
                multiply_rows::<V, D>(&part, i..p.w.m.min(i + MAX_ROWS));
            }
        }
    }
}

/// Multiplies at most [`MAX_ROWS`] rows by at most [`MAX_COLUMNS`] columns.
///
/// # Safety
/// - The CPU supports `V` and `D`.
/// - `p` satisfies the invariants of [`PanelProduct`], and `rows` ends at most at `p.w.m`.
#[inline(always)]
unsafe fn multiply_rows<V: IntSimd, D: ByteDots>(p: &PanelProduct, rows: Range<usize>) {
    let chunks = p.w.k.div_ceil(CHUNK);
    let step = const { rows_of::<D>() };
    // SAFETY: after alignment, the scratch memory holds `PANELS` panels, the outlier weights, and `MAX_ROWS *
    // n` sums ([`dot_scratch`]). Rows end at `p.w.m` and chunks at `k`.
    unsafe {
        let scratch = p.scratch.cast::<u8>();
        let panels = scratch.add(scratch.align_offset(ALIGN)).cast::<DotPanel>();
        let floats = panels.add(PANELS).cast::<OutlierWeights>();
        let sums = floats.add(1).cast::<f32>();
        for c in 0..chunks {
            let outliers = Outliers::of(p, c);
            let runs = RUNS.min((p.w.k - c * CHUNK) / RUN);
            for i in rows.clone().step_by(step) {
                for panel in 0..step / PANEL_ROWS {
                    let to = &mut *panels.add(panel);
                    let i = i + panel * PANEL_ROWS;
                    if D::SUMS_IN_I16 {
                        // Integer weights shifted by the spare bits would overflow 16 bits here.
                        fill::<V, I8Values>(&p.w, i, c, &mut *(&raw mut to.chunk).cast());
                    } else {
                        fill::<V, ShiftedI8Values>(&p.w, i, c, &mut to.chunk);
                    }
                }
                set_starts::<D>(panels.cast(), &p.w.integers, runs);
                outliers.unpack::<D>(panels.cast(), &p.w.integers, floats);
                let sums = sums.add((i - rows.start) * p.n);
                let is_whole = i + step <= p.w.m;
                let (to, to_stride) = if c + 1 == chunks && is_whole {
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
                let mut next = WeightPrefetcher::new(&p.w, next_i, next_c..next_c + 1, step, p.n.div_ceil(D::COLUMNS));
                add_chunk::<D>(&chunk, p.n, &mut next);
                if c + 1 == chunks && !is_whole {
                    copy_results::<D>(p, i, sums);
                }
            }
        }
    }
}

/// Computes the initial values of the sums for the first `runs` runs, and adapts the scales to shifted
/// integers and to the signs of runs.
///
/// # Safety
/// - The CPU supports `D`.
/// - `panels` points to filled [`DotPanel`]s for [`rows_of`] rows.
#[inline(always)]
unsafe fn set_starts<D: ByteDots>(panels: *mut u8, integers: &IntFormat, runs: usize) {
    let stride = const { register_stride::<D>() };
    let halves = if integers.by_16 { 1 } else { 2 };
    let unit = 1.0 / (1u32 << integers.spare_bits()) as f32;
    // SAFETY: all offsets are within a filled `DotPanel` (function contract).
    unsafe {
        for r in 0..REGISTERS {
            let panel = panels.add(r * stride);
            match i16_sums::<D>(integers) {
                0 => set_integer_starts::<D, false>(panel, halves, runs),
                sums => set_integer_starts::<D, true>(panel, halves / sums, runs),
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

/// Computes the initial values of integer sums, each of which covers `halves` half runs.
///
/// # Safety
/// - The CPU supports `D`.
/// - `panel` points to the part of a filled [`DotPanel`] for one register of rows.
#[inline(always)]
unsafe fn set_integer_starts<D: ByteDots, const IN_I16: bool>(panel: *mut u8, halves: usize, runs: usize) {
    // SAFETY: all offsets are within a filled `DotPanel` (function contract).
    unsafe {
        let zero_point = D::broadcast([ZERO_POINT; 4].as_ptr());
        for half in (0..2 * runs).step_by(halves) {
            let mut total = D::zero();
            for word in half * WORDS_PER_HALF..(half + halves) * WORDS_PER_HALF {
                let w = D::load(panel.add(word * PANEL_ROWS * 4));
                total = if IN_I16 {
                    total.add_byte_pairs(zero_point, w)
                } else {
                    total.add_dots(zero_point, w)
                };
            }
            let starts = panel.add(offset_of!(DotPanel, starts) + half * PANEL_ROWS * 4);
            if IN_I16 {
                total.store_negated_words(starts);
            } else {
                total.store_subtracted_from(OFFSET.to_bits(), starts);
            }
        }
    }
}

/// Offsets of the scales and the minimums in a panel.
const SCALES: usize = offset_of!(PanelChunk<ShiftedI8Values>, scales);
const MINIMUMS: usize = offset_of!(PanelChunk<ShiftedI8Values>, mins);

/// Bit set of the elements of a chunk that are an outlier of at least one column.
struct Outliers([u64; CHUNK / 64]);

impl Outliers {
    /// Collects the outliers of chunk `c` of all columns.
    ///
    /// # Safety
    /// `p` satisfies the invariants of [`PanelProduct`] for [`U8Chunk`] activations, and `c * CHUNK < p.w.k`.
    #[inline(always)]
    unsafe fn of(p: &PanelProduct, c: usize) -> Outliers {
        // Bytes instead of bits, because setting a bit would depend on the previous store.
        let mut is_outlier = [0u8; CHUNK];
        for j in 0..p.n {
            let at = j * p.x_stride + c * size_of::<U8Chunk>() + offset_of!(U8Chunk, outlier_index);
            // SAFETY: column `j < p.n` has chunk `c` (function contract).
            let outlier_index = unsafe { p.x.add(at).cast::<[u16; N_OUTLIERS]>().read_unaligned() };
            for at in outlier_index {
                is_outlier[usize::from(at) % CHUNK] = 1;
            }
        }
        let mut words = [0; CHUNK / 64];
        for (i, eight) in is_outlier.as_chunks::<8>().0.iter().enumerate() {
            // Multiplication moves the lowest bit of byte `j` to bit `j` of the highest byte.
            let bits = u64::from_le_bytes(*eight).wrapping_mul(0x0102_0408_1020_4080) >> 56;
            words[i / 8] |= bits << (i % 8 * 8);
        }
        Outliers(words)
    }

    /// Writes the f32 weights of these elements, with the signs of their runs.
    ///
    /// # Safety
    /// - The CPU supports `D`.
    /// - `panels` points to filled [`DotPanel`]s for [`rows_of`] rows, and `to` is valid for writes.
    #[inline(always)]
    unsafe fn unpack<D: ByteDots>(&self, panels: *const u8, integers: &IntFormat, to: *mut OutlierWeights) {
        // A dot product of 4 weights with one of these selects a single weight.
        const BYTES: [[u8; 4]; 4] = [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]];
        let in_16_bits = i16_sums::<D>(integers) > 0;
        for (word, &bits) in self.0.iter().enumerate() {
            let mut bits = bits;
            while bits != 0 {
                let k = 64 * word + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                for r in 0..REGISTERS {
                    let half_offset = k / HALF * PANEL_ROWS * size_of::<f32>();
                    // SAFETY: `k < CHUNK`, so all offsets are within the panels and `*to` (function
                    // contract).
                    unsafe {
                        let panel = panels.add(r * const { register_stride::<D>() });
                        let word = D::load(panel.add(k / 4 * PANEL_ROWS * 4));
                        let one = D::broadcast(BYTES[k % 4].as_ptr());
                        let w = if in_16_bits {
                            let w = D::zero().add_byte_pairs(one, word);
                            D::zero().add_pair_dots(w, D::words(shift(integers)))
                        } else {
                            D::zero().add_dots(one, word)
                        };
                        let w = w.floats();
                        let scale = D::Float::load(panel.add(SCALES + half_offset).cast());
                        let w = if integers.has_own_mins() {
                            let min = D::Float::load(panel.add(MINIMUMS + half_offset).cast());
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
    /// Pointer to the [`DotPanel`]s.
    panels: *const u8,
    /// Pointer to the [`OutlierWeights`].
    floats: *const f32,
    integers: IntFormat,
    /// Runs in this chunk; fewer than [`RUNS`] at the end of a row.
    runs: usize,
    /// Pointer to the activation chunk of the first column.
    x: *const u8,
    x_stride: usize,
    /// Previous sums of all rows, column by column; null for zeros.
    from: *const f32,
    /// Destination of the sums. Columns are `to_stride` floats apart.
    to: *mut f32,
    to_stride: usize,
    /// Whether the columns' chunk is read for the first time and hence probably not in the L2 cache.
    is_first: bool,
}

/// Adds the product of a chunk with `n` columns.
///
/// # Safety
/// - The CPU supports `D`.
/// - `chunk` describes valid panels, activations, and destinations for `n` columns.
#[inline(always)]
unsafe fn add_chunk<D: ByteDots>(chunk: &Chunk, n: usize, next: &mut WeightPrefetcher) {
    let (by_16, mins) = (chunk.integers.by_16, chunk.integers.has_own_mins());
    // SAFETY: the caller upholds the contract of `add_all`.
    unsafe {
        match i16_sums::<D>(&chunk.integers) {
            1 if const { D::SUMS_IN_I16 } => match (by_16, mins) {
                (false, false) => add_all::<D, false, false, 1>(chunk, n, next),
                (false, true) => add_all::<D, false, true, 1>(chunk, n, next),
                (true, false) => add_all::<D, true, false, 1>(chunk, n, next),
                (true, true) => add_all::<D, true, true, 1>(chunk, n, next),
            },
            2 if const { D::SUMS_IN_I16 } => {
                if mins {
                    add_all::<D, false, true, 2>(chunk, n, next)
                } else {
                    add_all::<D, false, false, 2>(chunk, n, next)
                }
            }
            _ => match (by_16, mins) {
                (false, false) => add_all::<D, false, false, 0>(chunk, n, next),
                (false, true) => add_all::<D, false, true, 0>(chunk, n, next),
                (true, false) => add_all::<D, true, false, 0>(chunk, n, next),
                (true, true) => add_all::<D, true, true, 0>(chunk, n, next),
            },
        }
    }
}

/// Returns the number of 16-bit sums for products that share a scale, or 0 if they are accumulated in 32
/// bits.
#[inline(always)]
fn i16_sums<D: ByteDots>(integers: &IntFormat) -> usize {
    match integers.i16_sums_per_run() {
        _ if !D::SUMS_IN_I16 => 0,
        n if integers.by_16 => n.min(1),
        n => n,
    }
}

/// Returns the factor that compensates for storing the integers of a panel unshifted.
const fn shift(integers: &IntFormat) -> i16 {
    1 << integers.spare_bits()
}

/// Adds the product of a chunk in column tiles of nearly equal width. A narrow last tile would wait for each
/// of its sums.
///
/// # Safety
/// - The CPU supports `D`.
/// - `chunk` describes valid panels, activations, and destinations for `n` columns.
#[inline(always)]
unsafe fn add_all<D: ByteDots, const BY_16: bool, const MINS: bool, const SUMS: usize>(
    chunk: &Chunk,
    n: usize,
    next: &mut WeightPrefetcher,
) {
    let most = const { columns_at_once::<D, SUMS>() };
    let tiles = n.div_ceil(most);
    let (columns, larger) = (n / tiles, n % tiles);
    let mut j = 0;
    for (columns, tiles) in [(columns + 1, larger), (columns, tiles - larger)] {
        let end = j + columns * tiles;
        // SAFETY: `end <= n`, so the columns are valid (function contract).
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
                // Unreachable for non-empty ranges: `columns + 1` exceeds the maximum only if all tiles have
                // the same width.
                _ => {}
            }
        }
        j = end;
    }
}

/// Returns the maximum columns per tile. A single column suffices if 16 bits cannot hold the sums, because
/// speed-critical matmuls of these types use another form of activations.
const fn columns_at_once<D: ByteDots, const SUMS: usize>() -> usize {
    if SUMS == 0 && D::SUMS_IN_I16 { 1 } else { D::COLUMNS }
}

/// Adds the product of a chunk with a range of columns, `C` at a time.
///
/// # Safety
/// - The CPU supports `D`.
/// - `chunk` describes valid panels, activations, and destinations for these columns, whose number is a
///   multiple of `C`.
#[inline(always)]
unsafe fn add_tiles<D: ByteDots, const BY_16: bool, const MINS: bool, const SUMS: usize, const C: usize>(
    chunk: &Chunk,
    columns: Range<usize>,
    next: &mut WeightPrefetcher,
) {
    for j in columns.step_by(C) {
        next.fetch();
        // SAFETY: columns `j..j + C` are within the range (function contract).
        unsafe { add::<D, BY_16, MINS, SUMS, C>(chunk, j) };
    }
}

/// Adds the product of a chunk with columns `j..j + C`.
///
/// - `BY_16`: half runs have their own scales.
/// - `MINS`: weights have minimums.
/// - `SUMS`: see [`i16_sums`].
///
/// # Safety
/// - The CPU supports `D`.
/// - `chunk` describes valid panels, activations, and destinations for these columns.
#[inline(always)]
unsafe fn add<D: ByteDots, const BY_16: bool, const MINS: bool, const SUMS: usize, const C: usize>(
    chunk: &Chunk,
    j: usize,
) {
    let lanes = D::Float::LANES;
    let n_words = if BY_16 { WORDS_PER_HALF } else { 2 * WORDS_PER_HALF };
    // SAFETY: `run < chunk.runs <= 8`, so all offsets are within a panel and within the `U8Chunk` of each
    // column (function contract).
    unsafe {
        let x = chunk.x.add(j * chunk.x_stride);
        let mut sums = [row_floats::<D>(chunk, offset_of!(DotPanel, sums), 0); C];
        for run in 0..chunk.runs {
            if chunk.is_first {
                fetch_next::<C>(x, chunk.x_stride, run);
            }
            for part in 0..if BY_16 { 2 } else { 1 } {
                let half = 2 * run + part;
                let w = chunk.panels.add(half * WORDS_PER_HALF * PANEL_ROWS * 4);
                let q = x.add(offset_of!(U8Chunk, values) + half * HALF);
                let starts = chunk.panels.add(offset_of!(DotPanel, starts) + half * PANEL_ROWS * 4);
                let totals = if SUMS == 0 {
                    dots::<D, C>(w, q, chunk.x_stride, n_words, starts)
                } else {
                    let shift = D::words(shift(&chunk.integers));
                    dots_in_i16::<D, SUMS, C>(w, q, chunk.x_stride, n_words, starts, shift)
                };
                let scales = row_floats::<D>(chunk, SCALES, half);
                for c in 0..C {
                    for r in 0..REGISTERS {
                        sums[c][r] = totals[c][r].float_bits().mul_add(scales[r], sums[c][r]);
                    }
                }
                if MINS {
                    let mins = row_floats::<D>(chunk, MINIMUMS, half);
                    let row = if BY_16 { 1 + part } else { 0 };
                    let at = offset_of!(U8Chunk, sums) + (row * RUNS + run) * size_of::<f32>();
                    for c in 0..C {
                        let sum_of_x = column_float::<D>(x.add(c * chunk.x_stride + at));
                        for r in 0..REGISTERS {
                            sums[c][r] = mins[r].mul_add(sum_of_x, sums[c][r]);
                        }
                    }
                }
            }
            if run.is_multiple_of(RUNS_PER_OUTLIER) {
                add_outlier::<D, C>(chunk, x, run / RUNS_PER_OUTLIER, &mut sums);
            }
        }
        for i in chunk.runs.div_ceil(RUNS_PER_OUTLIER)..N_OUTLIERS {
            add_outlier::<D, C>(chunk, x, i, &mut sums);
        }
        for c in 0..C {
            let scale = column_float::<D>(x.add(c * chunk.x_stride + offset_of!(U8Chunk, scale)));
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

/// Prefetches cache line `i` of the chunk of the next `C` columns. A chunk has no more lines than runs.
#[inline(always)]
fn fetch_next<const C: usize>(x: *const u8, x_stride: usize, i: usize) {
    const { assert!(size_of::<U8Chunk>() <= RUNS * CACHE_LINE) };
    for c in C..2 * C {
        prefetch(x.wrapping_add(c * x_stride + i * CACHE_LINE), CacheLevel::First);
    }
}

/// Adds the products of outlier `i` of each of `C` columns starting at `x`.
///
/// # Safety
/// - The CPU supports `D`.
/// - `x` is valid for the chunks of `C` columns, and the weights of their outliers are set.
#[inline(always)]
unsafe fn add_outlier<D: ByteDots, const C: usize>(
    chunk: &Chunk,
    x: *const u8,
    i: usize,
    sums: &mut [[D::Float; REGISTERS]; C],
) {
    for c in 0..C {
        // SAFETY: the outlier's index is below `CHUNK` (written by `quantize_u8`), and `c < C` columns are
        // valid.
        unsafe {
            let x = x.add(c * chunk.x_stride);
            let at = x.add(offset_of!(U8Chunk, outlier_index) + i * size_of::<u16>());
            let at = at.cast::<u16>().read_unaligned();
            let w = chunk.floats.add(usize::from(at) * DOT_ROWS);
            let x = column_float::<D>(x.add(offset_of!(U8Chunk, outliers) + i * size_of::<f32>()));
            for r in 0..REGISTERS {
                sums[c][r] = D::Float::load(w.add(r * D::Float::LANES)).mul_add(x, sums[c][r]);
            }
        }
    }
}

/// Returns `starts` plus the dot products of `n_words` words starting at `w` and `q`, as the bits of floats.
///
/// # Safety
/// - The CPU supports `D`.
/// - `w` and `starts` point into a panel, and `q` into the chunk of the first of `C` columns; `n_words` words
///   are readable.
#[inline(always)]
unsafe fn dots<D: ByteDots, const C: usize>(
    w: *const u8,
    q: *const u8,
    q_stride: usize,
    n_words: usize,
    starts: *const u8,
) -> [[D; REGISTERS]; C] {
    // SAFETY: `word < n_words` words are readable at `w` and `q` (function contract).
    unsafe {
        let mut totals = [both_registers::<D>(starts); C];
        for word in 0..n_words {
            let w = both_registers::<D>(w.add(word * PANEL_ROWS * 4));
            for c in 0..C {
                let q = D::broadcast(q.add(c * q_stride + word * 4));
                for r in 0..REGISTERS {
                    totals[c][r] = totals[c][r].add_dots(q, w[r]);
                }
            }
        }
        totals
    }
}

/// Returns the same values as [`dots`], using `SUMS` sums of 16 bits. `shift` compensates for storing the
/// weights unshifted.
///
/// # Safety
/// - The CPU supports `D`.
/// - `w` and `starts` point into a panel, and `q` into the chunk of the first of `C` columns; `n_words` words
///   are readable.
#[inline(always)]
unsafe fn dots_in_i16<D: ByteDots, const SUMS: usize, const C: usize>(
    w: *const u8,
    q: *const u8,
    q_stride: usize,
    n_words: usize,
    starts: *const u8,
    shift: D,
) -> [[D; REGISTERS]; C] {
    let n_words = n_words / SUMS;
    // SAFETY: all word indices are below `n_words`, so the words are readable at `w` and `q` (function
    // contract).
    unsafe {
        let mut totals = [[D::broadcast(OFFSET.to_bits().to_ne_bytes().as_ptr()); REGISTERS]; C];
        for i in 0..SUMS {
            let mut sums = [both_registers::<D>(starts.add(i * PANEL_ROWS * 4)); C];
            // Two nested loops, so that the compiler unrolls the inner one.
            for at in (i * n_words..(i + 1) * n_words).step_by(WORDS_PER_HALF) {
                for word in at..at + WORDS_PER_HALF {
                    let w = both_registers::<D>(w.add(word * PANEL_ROWS * 4));
                    for c in 0..C {
                        let q = D::broadcast(q.add(c * q_stride + word * 4));
                        for r in 0..REGISTERS {
                            sums[c][r] = sums[c][r].add_byte_pairs(q, w[r]);
                        }
                        sums[c] = D::compute_together(sums[c]);
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

/// Loads the two registers of rows at `p`.
///
/// # Safety
/// - The CPU supports `D`.
/// - `p` points into the panels' data for the first register of rows.
#[inline(always)]
unsafe fn both_registers<D: ByteDots>(p: *const u8) -> [D; REGISTERS] {
    // SAFETY: the data of the second register follows at `register_stride` (function contract).
    unsafe { [D::load(p), D::load(p.add(const { register_stride::<D>() }))] }
}

/// Loads entry `i` of the array at `offset` in the panels, for both registers of rows.
///
/// # Safety
/// - The CPU supports `D`.
/// - The array has an entry `i`.
#[inline(always)]
unsafe fn row_floats<D: ByteDots>(chunk: &Chunk, offset: usize, i: usize) -> [D::Float; REGISTERS] {
    // SAFETY: entry `i` is within the panels of both registers (function contract).
    unsafe {
        let p = chunk.panels.add(offset + i * PANEL_ROWS * size_of::<f32>());
        [
            D::Float::load(p.cast()),
            D::Float::load(p.add(const { register_stride::<D>() }).cast()),
        ]
    }
}

/// Broadcasts a float of a column.
///
/// # Safety
/// - The CPU supports `D`.
/// - `x` is valid for reads of a float; it may be unaligned.
#[inline(always)]
unsafe fn column_float<D: ByteDots>(x: *const u8) -> D::Float {
    // SAFETY: `x` is valid for reads of 4 bytes (function contract).
    unsafe { D::Float::splat(x.cast::<f32>().read_unaligned()) }
}

/// Copies the sums of the last rows, starting at row `i`, to the output.
///
/// # Safety
/// - The CPU supports `D`.
/// - `i < p.w.m`, `sums` holds [`rows_of`] floats per column, and `p` satisfies the invariants of
///   [`PanelProduct`].
#[inline(always)]
unsafe fn copy_results<D: ByteDots>(p: &PanelProduct, i: usize, sums: *const f32) {
    let rows = const { rows_of::<D>() };
    for j in 0..p.n {
        // SAFETY: rows are written up to `p.w.m` and columns up to `p.n`, which `out` covers (function
        // contract).
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
