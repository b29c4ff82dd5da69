//! Skinny matmuls over row groups in 512-bit registers, compiled once for all types.
//!
//! [`interleaved8_zmm`](super::interleaved8_zmm) unpacks weights in registers, again for every few columns. From
//! [`GROUP_PANEL_COLUMNS`] columns on, a function of the type ([`FillGroups`]) unpacks a chunk of four row groups to
//! [panels](super::pack) in the L1 cache. All columns are multiplied by the panels:
//!
//! ```text
//! for groups in schedule:                           # 4 groups, one memory stream each
//!     sums[columns][R] = 0.0                        # f32 in L1; R registers of rows
//!     for chunk in 0..k / 256:
//!         fill 2 panels with the chunk              # a function of the type
//!         for tile of N columns:
//!             for scale in chunk:                   # of a run or half run
//!                 prefetch the bytes PREFETCH_DISTANCE ahead        # with the first tile
//!                 low[N][R] = - zero * sum(x), high[N][R] = 0       # i32, exact
//!                 for word:
//!                     low  += dot4(panel, broadcast(low bytes of x))
//!                     high += dot4(panel, broadcast(high bytes of x))
//!                 sums += f32(low + 256 * high) * scale
//!             sums += sum over scales of min * sum(x)
//!     out[column][row] = sums * scale of x
//! ```
//!
//! A tile has two registers of weights from memory, which share each broadcast of an activation. With unpacking in
//! registers, the words of four groups would not fit.
//!
//! Integers and the order of f32 operations equal those of [`interleaved8`](super::interleaved8), so results have
//! equal bits.
//!
//! # Limits
//!
//! - Filling and multiplying take turns, so a core overlaps them less than unpacking in registers. On Emerald
//!   Rapids, three columns take up to 1.15 times as long (Q8_0), four as long, and 5 to 8 columns 0.7 to 1.0 times.
//! - Panels must be filled with 64-byte stores. With two stores of 32 bytes, loads of a word wait until both stores are
//!   in the cache. Three columns then take 1.4 times as long.
//! - The module needs VNNI and 32 registers. With 256-bit registers (AVX2 and AVX-VNNI), three and four columns
//!   take 1.2 to 1.4 times as long as with unpacking in registers.

use std::marker::PhantomData;
use std::mem::MaybeUninit;

use super::int_products::{IntProduct, each_of_8};
use super::integers::{I16Chunk, I16Header};
use super::interleaved8::{PREFETCH_DISTANCE, WORDS};
use super::interleaved8_schedule::{GroupChunk, Schedule};
use super::pack::{ByteValues, FillGroups, GROUPS, IntFormat, PANEL_ROWS, PanelChunk, SIGN};
use crate::layout::groups::{GROUP_ROWS, LANES};
use crate::layout::runs::{CHUNK, RUN, RUNS};
use crate::prefetch::{CACHE_LINE, CacheLevel, prefetch};
use crate::simd::dots::ByteDots;
use crate::simd::{IntSimd, Simd};

/// Minimum columns. With fewer columns, unpacking in registers is faster.
pub(crate) const GROUP_PANEL_COLUMNS: usize = 4;

/// Maximum columns of [`multiply`]. Their chunks of activations fit the L2 cache, and their sums the L1 cache.
pub(crate) const MAX_GROUP_PANEL_COLUMNS: usize = 32;

/// Maximum columns per tile, whose sums fit the registers.
const TILE: usize = 6;

/// Panels that share the broadcasts of activations.
const PANELS: usize = 2;

/// Row groups of a type, with the functions that unpack them.
pub(crate) struct GroupFormat {
    pub integers: IntFormat,
    /// Size of a chunk of a row group in bytes.
    pub chunk_bytes: usize,
    pub fill: FillGroups,
}

/// Function pointer to an instantiation of [`multiply`].
pub(crate) type MultiplyGroups = unsafe fn(&IntProduct, &GroupFormat);

/// Sums of a column with the rows of all panels.
type RowSums = [f32; PANELS * PANEL_ROWS];

/// A chunk of `G` row groups, unpacked to panels.
struct FilledChunk<'a, const G: usize> {
    groups: GroupChunk<G>,
    format: &'a GroupFormat,
    panels: &'a [MaybeUninit<PanelChunk<ByteValues>>; PANELS],
}

/// Multiplies row groups by up to [`MAX_GROUP_PANEL_COLUMNS`] columns. `V` determines whether loops are unrolled, and
/// `D` multiplies. The rows of a panel fill `R` registers `D`, and the rows of two panels fill `R2`.
///
/// # Safety
/// - The CPU supports `D`, and the weights have the format `format`.
/// - `p` satisfies the invariants of [`IntProduct`], `p.m` is a multiple of [`GROUP_ROWS`], and `p.n` is at most
///   [`MAX_GROUP_PANEL_COLUMNS`].
#[inline(always)]
pub(crate) unsafe fn multiply<V: IntSimd, D: ByteDots, const R: usize, const R2: usize>(
    p: &IntProduct,
    format: &GroupFormat,
) {
    const { assert!(R * D::Float::LANES == PANEL_ROWS && R2 == PANELS * R) };
    let n_groups = p.m / GROUP_ROWS;
    // One panel suffices for up to two groups at the end.
    let rest = match n_groups % (PANELS * GROUPS) {
        rest @ 1..=GROUPS => rest,
        _ => 0,
    };
    let whole = (n_groups - rest) * GROUP_ROWS;
    // SAFETY: both parts consist of row groups of `p`, so they satisfy its invariants.
    unsafe {
        if whole > 0 {
            multiply_panels::<V, D, R2, { PANELS * GROUPS }>(&IntProduct { m: whole, ..*p }, format);
        }
        if rest > 0 {
            let part = IntProduct {
                w: p.w.add(whole * p.row_stride),
                m: rest * GROUP_ROWS,
                out: p.out.add(whole),
                ..*p
            };
            multiply_panels::<V, D, R, GROUPS>(&part, format);
        }
    }
}

/// Multiplies `G` row groups in `R` registers at a time.
///
/// # Safety
/// The contract of [`multiply`] holds.
#[inline(always)]
unsafe fn multiply_panels<V: IntSimd, D: ByteDots, const R: usize, const G: usize>(
    p: &IntProduct,
    format: &GroupFormat,
) {
    let order = Schedule::<G>::streamed(p);
    let mut panels = [const { MaybeUninit::uninit() }; PANELS];
    let mut sums = [[0.0; PANELS * PANEL_ROWS]; MAX_GROUP_PANEL_COLUMNS];
    let sums = &mut sums[..p.n];
    for step in 0..order.len() {
        let groups = order.groups(step);
        sums.as_flattened_mut().fill(0.0);
        // SAFETY: the schedule yields groups below `p.m / GROUP_ROWS`, and `c < p.k`. The panels of the `G` groups
        // are filled before they are read.
        unsafe {
            for c in (0..p.k).step_by(CHUNK) {
                let part = groups.part_at(p, c, c / CHUNK * format.chunk_bytes);
                for (pair, panel) in part.w.chunks_exact(GROUPS).zip(&mut panels) {
                    (format.fill.bytes)([pair[0], pair[1]], part.runs, &mut *panel.as_mut_ptr());
                }
                let chunk = FilledChunk {
                    groups: part,
                    format,
                    panels: &panels,
                };
                add_columns::<V, D, R, G>(&chunk, sums);
            }
            store_results(p, groups.rows(), sums);
        }
    }
}

/// Adds the products of a chunk with all columns.
///
/// # Safety
/// The CPU supports `D`, the panels of `G` groups are filled, and the chunk has `sums.len()` columns.
#[inline(always)]
unsafe fn add_columns<V: IntSimd, D: ByteDots, const R: usize, const G: usize>(
    chunk: &FilledChunk<G>,
    sums: &mut [RowSums],
) {
    let n = sums.len();
    // Divide the columns evenly instead of leaving a few for the last tile.
    let each = n.div_ceil(n.div_ceil(TILE));
    for (i, sums) in sums.chunks_mut(each).enumerate() {
        let first = i * each;
        // SAFETY: columns `first..first + sums.len()` exist (function contract).
        unsafe {
            match sums.len() {
                6 => add_tile::<V, D, R, G, 6>(chunk, first, sums),
                5 => add_tile::<V, D, R, G, 5>(chunk, first, sums),
                4 => add_tile::<V, D, R, G, 4>(chunk, first, sums),
                3 => add_tile::<V, D, R, G, 3>(chunk, first, sums),
                2 => add_tile::<V, D, R, G, 2>(chunk, first, sums),
                _ => add_tile::<V, D, R, G, 1>(chunk, first, sums),
            }
        }
    }
}

/// Adds the products of a chunk with columns `first..first + N`.
///
/// # Safety
/// The CPU supports `D`, the panels of `G` groups are filled, the chunk has these columns, and `to` has `N` entries.
#[inline(always)]
unsafe fn add_tile<V: IntSimd, D: ByteDots, const R: usize, const G: usize, const N: usize>(
    chunk: &FilledChunk<G>,
    first: usize,
    to: &mut [RowSums],
) {
    let integers = &chunk.format.integers;
    let tile = Tile::<V, D, R, G, N> {
        chunk,
        first,
        by: PhantomData,
    };
    // SAFETY: the caller upholds the contract of the methods; `RowSums` has the floats of `R` registers.
    unsafe {
        let mut sums = [[D::Float::splat(0.0); R]; N];
        for j in 0..N {
            for r in 0..R {
                sums[j][r] = D::Float::load(to[j].as_ptr().add(r * D::Float::LANES));
            }
        }
        if integers.by_16 {
            tile.add_products::<true>(&mut sums);
        } else {
            tile.add_products::<false>(&mut sums);
        }
        if integers.has_own_mins() {
            tile.add_mins(&mut sums);
        }
        for j in 0..N {
            for r in 0..R {
                sums[j][r].store(to[j].as_mut_ptr().add(r * D::Float::LANES));
            }
        }
    }
}

/// A chunk of panels in `R` registers times the `N` columns starting at `first`.
struct Tile<'a, V, D, const R: usize, const G: usize, const N: usize> {
    chunk: &'a FilledChunk<'a, G>,
    first: usize,
    by: PhantomData<(V, D)>,
}

/// f32 sums of each column, in `R` registers.
type Sums<D, const R: usize, const N: usize> = [[<D as ByteDots>::Float; R]; N];

/// Bytes of a word of all rows of a panel.
const WORD_BYTES: usize = 4 * PANEL_ROWS;

impl<V: IntSimd, D: ByteDots, const R: usize, const G: usize, const N: usize> Tile<'_, V, D, R, G, N> {
    /// Returns the panel of register `r`, and the register's first row in it.
    #[inline(always)]
    fn panel(&self, r: usize) -> (*const PanelChunk<ByteValues>, usize) {
        let row = r * D::Float::LANES;
        (self.chunk.panels[row / PANEL_ROWS].as_ptr(), row % PANEL_ROWS)
    }

    /// Adds the dot products times the scales.
    ///
    /// # Safety
    /// The contract of [`add_tile`] holds, and `BY_16` matches the weights.
    #[inline(always)]
    unsafe fn add_products<const BY_16: bool>(&self, sums: &mut Sums<D, R, N>) {
        // Scales per run, and words per scale.
        let scales = if BY_16 { 2 } else { 1 };
        let words = WORDS / scales;
        // SAFETY: all offsets are within the panels and an `I16Chunk` of each of `N` columns (function contract).
        unsafe {
            let corrections = self.corrections();
            let mut w = [std::ptr::null::<u8>(); R];
            for r in 0..R {
                let (panel, row) = self.panel(r);
                w[r] = (&raw const (*panel).values).cast::<u8>().add(4 * row);
            }
            for at in 0..self.chunk.groups.runs * scales {
                let (run, half) = (at / scales, at % scales);
                if self.first == 0 && half == 0 {
                    self.prefetch(run);
                }
                let totals = self.totals(w, words, run, half, &corrections);
                for r in 0..R {
                    w[r] = w[r].add(words * WORD_BYTES);
                    let (panel, row) = self.panel(r);
                    let scale = (*panel).scales[2 * run + half].as_flattened().as_ptr().add(row);
                    let scale = D::Float::load(scale);
                    for j in 0..N {
                        sums[j][r] = totals[j][r].floats().mul_add(scale, sums[j][r]);
                    }
                }
            }
        }
    }

    /// Returns the exact dot products of the `words` words at `w`, starting at half run `half` of run `run`.
    ///
    /// # Safety
    /// The contract of [`add_tile`] holds, and each pointer in `w` is valid for the words of its register.
    #[inline(always)]
    unsafe fn totals(
        &self,
        w: [*const u8; R],
        words: usize,
        run: usize,
        half: usize,
        corrections: &[Corrections; N],
    ) -> [[D; R]; N] {
        let part = &self.chunk.groups;
        // SAFETY: the words are readable, and so are the activations of the run for `N` columns (function contract).
        unsafe {
            let mut sums = [[[D::zero(); 2]; R]; N];
            for j in 0..N {
                sums[j] = [[D::broadcast(corrections[j][half][run].as_ptr()), D::zero()]; R];
            }
            let x = (&raw const (*part.column(self.first)).parts[run]).cast::<u8>();
            let x = x.add(half * RUN / 2);
            each_of_8!(V, word => {
                if word < words {
                    let mut values = [D::zero(); R];
                    for r in 0..R {
                        values[r] = D::load(w[r].add(word * WORD_BYTES));
                    }
                    for j in 0..N {
                        for high in 0..2 {
                            let x = D::broadcast(x.add(j * part.x_stride + RUN * high + 4 * word));
                            for r in 0..R {
                                sums[j][r][high] = sums[j][r][high].add_dots(values[r], x);
                            }
                        }
                        if let [a, b] = &mut sums[j][..] {
                            for high in 0..2 {
                                [a[high], b[high]] = D::compute_together([a[high], b[high]]);
                            }
                        }
                    }
                }
            });
            let mut totals = [[D::zero(); R]; N];
            for j in 0..N {
                for r in 0..R {
                    let [low, high] = sums[j][r];
                    totals[j][r] = low.add_shifted(high, 8);
                }
            }
            totals
        }
    }

    /// Prefetches the bytes of one run in the stream of each group, as [`interleaved8`](super::interleaved8) does.
    #[inline(always)]
    fn prefetch(&self, run: usize) {
        let part = &self.chunk.groups;
        let run_bytes = self.chunk.format.chunk_bytes / RUNS;
        let at = PREFETCH_DISTANCE + run * run_bytes;
        let skip = if at < part.remaining { 0 } else { part.skip };
        for line in 0..run_bytes.div_ceil(CACHE_LINE) {
            for w in part.w {
                prefetch(w.wrapping_add(at + skip + line * CACHE_LINE), CacheLevel::Second);
            }
        }
    }

    /// Returns the sums of the activations times the integer that represents 0, negated.
    ///
    /// # Safety
    /// The contract of [`add_tile`] holds.
    #[inline(always)]
    unsafe fn corrections(&self) -> [Corrections; N] {
        let integers = &self.chunk.format.integers;
        let zero = if integers.signed { SIGN } else { integers.zero };
        let mut corrections = [[[[0; 4]; RUNS]; 2]; N];
        if zero > 0 {
            for j in 0..N {
                let column = self.chunk.groups.column(self.first + j);
                let to = corrections[j].as_flattened_mut().as_flattened_mut().as_mut_ptr();
                for at in (0..2 * RUNS).step_by(D::Float::LANES) {
                    // SAFETY: `totals` has rows for whole runs, first halves, and second halves, of 8 integers each
                    // (function contract). Two rows therefore exist after each of the first two rows.
                    unsafe {
                        let rows = (&raw const (*column).totals).cast::<[i32; RUNS]>();
                        let totals = rows.add(usize::from(integers.by_16)).cast::<u8>();
                        let shifted = D::zero().add_shifted(D::load(totals.add(4 * at)), zero.trailing_zeros());
                        shifted.store_subtracted_from(0, to.add(4 * at));
                    }
                }
            }
        }
        corrections
    }

    /// Adds the minimums times the sums of the activations.
    ///
    /// # Safety
    /// The contract of [`add_tile`] holds.
    #[inline(always)]
    unsafe fn add_mins(&self, sums: &mut Sums<D, R, N>) {
        let (scales, first_row) = if self.chunk.format.integers.by_16 {
            (2, 1)
        } else {
            (1, 0)
        };
        // SAFETY: all offsets are within the panels and an `I16Chunk` of each of `N` columns (function contract).
        unsafe {
            let mut mins = [[D::Float::splat(0.0); R]; N];
            for at in 0..self.chunk.groups.runs * scales {
                let (run, half) = (at / scales, at % scales);
                for r in 0..R {
                    let (panel, row) = self.panel(r);
                    let min = D::Float::load((*panel).mins[2 * run + half].as_flattened().as_ptr().add(row));
                    for j in 0..N {
                        let column: *const I16Chunk = self.chunk.groups.column(self.first + j);
                        let sum_of_x = (&raw const (*column).sums[first_row + half][run]).read_unaligned();
                        mins[j][r] = min.mul_add(D::Float::splat(sum_of_x), mins[j][r]);
                    }
                }
            }
            for j in 0..N {
                for r in 0..R {
                    sums[j][r] = sums[j][r].add(mins[j][r]);
                }
            }
        }
    }
}

/// Integers to add to a column's dot products, for each run (in `[0]`) or half run, as bytes.
type Corrections = [[[u8; 4]; RUNS]; 2];

/// Writes the sums of `G` groups to `p.out`. `rows` holds the first row of each group.
///
/// # Safety
/// `rows[g] + 8 <= p.m`, `sums` has `p.n` entries, and `p` satisfies the invariants of [`IntProduct`].
#[inline(always)]
unsafe fn store_results<const G: usize>(p: &IntProduct, rows: [usize; G], sums: &[RowSums]) {
    for (j, sums) in sums.iter().enumerate() {
        // SAFETY: `rows[g] + 8 <= p.m` and `j < p.n`, so the 8 floats of each group are within the output
        // (function contract).
        unsafe {
            let scale = I16Header::scale_at(p.x.add(j * p.x_stride));
            for g in 0..G {
                let mut results = [0.0; LANES];
                for lane in 0..LANES {
                    results[lane] = sums[g * LANES + lane] * scale;
                }
                let out = p.out.add(j * p.out_stride + rows[g]);
                out.cast::<[f32; LANES]>().write_unaligned(results);
            }
        }
    }
}
