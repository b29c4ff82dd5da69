//! Skinny matmuls over two row groups in int8 tiles (AMX), with the same bits as
//! [`interleaved8`](super::interleaved8).
//!
//! The low and high bytes of an activation are two rows of a tile. One tile multiplication thus yields both sums of up
//! to 8 columns:
//!
//! ```text
//! activation tile                      weight tile (16 rows of weights)
//! x0.low  | bytes of a step |          word 0 | w0[0..4] w1[0..4] .. w15[0..4] |
//! x0.high | bytes of a step |          word 1 | w0[4..8] ..                    |
//! x1.low  |       ..        |            ..
//! x1.high |       ..        |          word 7 | ..                             |
//! ```
//!
//! A step covers the weights that share a scale: a run or half a run. Steps are software-pipelined over two
//! sets of tiles, so that no instruction waits for its predecessor:
//!
//! ```text
//! for step in 0..n:
//!     start multiplying step                      # tile set step % 2
//!     load operands of step + 1                   # the other tile set
//!     unpack the weights of step + 2
//!     store the sums of step - 1
//!     sums += (low + 256 * high of step - 2) * scale
//! ```

use std::marker::PhantomData;
use std::mem::MaybeUninit;

use super::int_products::{IntProduct, chunk, each_of_8};
use super::integers::I16Header;
use super::interleaved8::{has_mins, prefetch, sums_row, word};
use super::interleaved8_schedule::{GroupChunk, Groups, Schedule};
use crate::layout::groups::{GROUP_ROWS, GroupScales, LANES, UnpackGroup};
use crate::layout::runs::{CHUNK, HALVES, RUN, RUNS, Unpack};
use crate::simd::byte_tiles::{BYTE_COLUMNS, ByteSums, ByteTileUnit, MAX_TILES};
use crate::simd::tiles::{TILE_ROWS, TILE_WIDTH};
use crate::simd::{IntSimd, Simd};

/// Minimum columns for which tiles are faster than vector registers.
pub(crate) const MIN_BYTE_COLUMNS: usize = 5;

/// Groups multiplied together, which fill the rows of a tile.
const GROUPS: usize = TILE_ROWS / GROUP_ROWS;

/// Steps by which unpacking runs ahead of multiplying.
const UNPACK_AHEAD: usize = 2;

/// Steps whose weights are buffered; a power of two.
const BUFFERED_STEPS: usize = 4;
const _: () = assert!(UNPACK_AHEAD < BUFFERED_STEPS);

/// Number of steps between a multiplication and its accumulation.
const ACCUMULATE_LAG: usize = 2;

/// Alignment of the activation tiles and of [`Buffers`] in bytes.
const ALIGN: usize = 4096;

/// Maximum columns multiplied together.
pub(crate) const MAX_BYTE_COLUMNS: usize = MAX_TILES * BYTE_COLUMNS;

/// Returns the scratch memory in floats for `n` columns as tiles.
pub(crate) const fn byte_tile_scratch(k: usize, n: usize) -> usize {
    if n < MIN_BYTE_COLUMNS {
        return 0;
    }
    let bytes = MAX_TILES * TILE_ROWS * k.next_multiple_of(RUN) + ALIGN;
    n.div_ceil(MAX_BYTE_COLUMNS) * (bytes / size_of::<f32>())
}

/// Unpacked weights and sums in flight.
///
/// The buffers are kept small and contiguous, with sums for two steps. With sums for four steps, a run took
/// 20 % longer, presumably because loads stall on pending stores whose addresses have the same low 12 bits.
#[repr(C, align(4096))]
struct Buffers<const TILES: usize> {
    /// Weights of each step, one tile row per quad.
    weights: [[u8; RUN / 4 * TILE_WIDTH]; BUFFERED_STEPS],
    sums: [[ByteSums; TILES]; ACCUMULATE_LAG],
    /// Scales for each step of the current and the previous chunk, one lane per row.
    scales: [[[f32; TILE_ROWS]; HALVES]; 2],
    mins: [[[f32; TILE_ROWS]; HALVES]; 2],
    /// Scales and minimums of each group.
    groups: [GroupScales; GROUPS],
}

/// f32 sums of each column, with the rows of a tile in one or two registers.
type Sums<F, const TILES: usize> = [[[F; 2]; BYTE_COLUMNS]; TILES];

/// State of multiplying two row groups.
struct Pair<'a, U: ByteTileUnit, D, const TILES: usize> {
    product: &'a IntProduct,
    /// Activation columns as tiles, written by [`store_columns`].
    x: *const u8,
    groups: Groups<GROUPS>,
    unit: &'a mut U,
    buffers: *mut Buffers<TILES>,
    sums: Sums<U::Float, TILES>,
    by: PhantomData<D>,
}

/// Multiplies row groups by up to `TILES` times [`BYTE_COLUMNS`] columns.
///
/// # Safety
/// - The CPU supports `U`, and no other tile unit is active in this thread.
/// - `p` satisfies the invariants of [`IntProduct`], and its scratch memory has [`byte_tile_scratch`] floats.
///   With [`reuse_prepared_x`](IntProduct::reuse_prepared_x) it holds the columns as tiles.
#[inline(always)]
pub(crate) unsafe fn multiply<U: ByteTileUnit, D: UnpackGroup<U::Int>, const TILES: usize>(p: &IntProduct) {
    const { assert!(TILES <= MAX_TILES && GROUP_ROWS == LANES) };
    let mut buffers = MaybeUninit::<Buffers<TILES>>::uninit();
    let order = Schedule::<GROUPS>::streamed(p);
    // SAFETY: the scratch memory holds the aligned columns ([`byte_tile_scratch`]). Every part of `buffers`
    // is written before it is read (see `Pair::multiply`).
    unsafe {
        let x = p.scratch.cast::<u8>();
        let x = x.add(x.align_offset(ALIGN));
        if !p.reuse_prepared_x {
            store_columns::<U, D, TILES>(p, x);
        }
        let mut unit = U::new(const { quads::<U::Int, D>() });
        for step in 0..order.len() {
            let mut pair = Pair::<U, D, TILES> {
                product: p,
                x,
                groups: order.groups(step),
                unit: &mut unit,
                buffers: buffers.as_mut_ptr(),
                sums: [[[U::Float::splat(0.0); 2]; BYTE_COLUMNS]; TILES],
                by: PhantomData,
            };
            pair.multiply();
            pair.store_results();
        }
    }
}

/// Returns the number of quads (4 weights) per step.
const fn quads<V: IntSimd, D: Unpack<V>>() -> usize {
    if D::BY_16 { RUN / 8 } else { RUN / 4 }
}

/// Returns the number of steps per chunk.
const fn steps_per_chunk<V: IntSimd, D: Unpack<V>>() -> usize {
    RUN / 4 * RUNS / quads::<V, D>()
}

/// Writes the columns as tiles, step by step. Missing columns are zero.
///
/// # Safety
/// `p` satisfies the invariants of [`IntProduct`], and `to` is valid for writes of [`byte_tile_scratch`]
/// floats.
#[inline(always)]
unsafe fn store_columns<U: ByteTileUnit, D: UnpackGroup<U::Int>, const TILES: usize>(p: &IntProduct, to: *mut u8) {
    const ZEROS: [[u8; RUN]; 2] = [[0; RUN]; 2];
    for j in 0..TILES * BYTE_COLUMNS {
        let (tile, row) = (j / BYTE_COLUMNS, 2 * (j % BYTE_COLUMNS));
        for run in 0..p.k / RUN {
            // SAFETY: `j < p.n` and `run < k / RUN` for reads; the tiles of all runs fit in the scratch
            // memory (function contract).
            unsafe {
                let parts: [[u8; RUN]; 2] = if j < p.n {
                    let column = chunk(p.x.add(j * p.x_stride), run * RUN);
                    (&raw const (*column).parts[run % RUNS])
                        .cast::<[[u8; RUN]; 2]>()
                        .read_unaligned()
                } else {
                    ZEROS
                };
                if D::BY_16 {
                    let tile = to
                        .add((2 * run * TILES + tile) * TILE_ROWS * RUN / 2)
                        .cast::<[u8; RUN / 2]>();
                    for (half, at) in [tile, tile.add(TILES * TILE_ROWS)].into_iter().enumerate() {
                        for part in 0..2 {
                            let bytes = &parts[part][half * RUN / 2..];
                            at.add(row + part).write(bytes.as_ptr().cast::<[u8; RUN / 2]>().read());
                        }
                    }
                } else {
                    // Write both rows with one store.
                    let tile = to.add((run * TILES + tile) * TILE_ROWS * RUN);
                    tile.add(row * RUN).cast::<[[u8; RUN]; 2]>().write(parts);
                }
            }
        }
    }
}

impl<U: ByteTileUnit, D: UnpackGroup<U::Int>, const TILES: usize> Pair<'_, U, D, TILES> {
    const STEPS: usize = steps_per_chunk::<U::Int, D>();

    /// Accumulates all steps.
    ///
    /// # Safety
    /// - The CPU supports `U`.
    /// - The operands satisfy the contract of [`multiply`](multiply()).
    #[inline(always)]
    unsafe fn multiply(&mut self) {
        let n = self.product.k / RUN * (Self::STEPS / RUNS);
        // SAFETY: `step < n`. Each step is unpacked, loaded, multiplied, stored, and accumulated in this
        // order.
        unsafe {
            self.unpack::<false>(0, n);
            self.load::<false>(0, n);
            self.unpack::<true>(1, n);
            for step in (0..n).step_by(2) {
                self.step::<false>(step, n);
                if step + 1 < n {
                    self.step::<true>(step + 1, n);
                }
            }
            let last = self.sums_at(n - 1);
            if n.is_multiple_of(2) {
                self.unit.store::<true, TILES>(last);
            } else {
                self.unit.store::<false, TILES>(last);
            }
            for step in n.saturating_sub(ACCUMULATE_LAG)..n {
                self.add(step, n);
            }
        }
    }

    /// Starts multiplying a step and processes the pipeline stages of its neighbors.
    ///
    /// # Safety
    /// - The CPU supports `U`.
    /// - Step `step` is loaded, and the pipeline is at this step.
    #[inline(always)]
    unsafe fn step<const ODD: bool>(&mut self, step: usize, n: usize) {
        // SAFETY: step `step` is loaded (function contract), and the other stages use the buffers of other
        // steps.
        unsafe {
            if const { D::SIGNED || D::ZERO > 0 } {
                self.unit.multiply::<ODD, TILES, true>();
            } else {
                self.unit.multiply::<ODD, TILES, false>();
            }
            // Loads alternate between two sets of tile registers.
            if ODD {
                self.load::<false>(step + 1, n);
            } else {
                self.load::<true>(step + 1, n);
            }
            if !(D::BY_16 && ODD) {
                let part = self.part(step);
                if !ODD && step.is_multiple_of(Self::STEPS) {
                    self.store_scales(&part, step / Self::STEPS);
                }
                prefetch::<U::Int, D, GROUPS>(&part, step % Self::STEPS / (Self::STEPS / RUNS));
            }
            self.unpack::<ODD>(step + UNPACK_AHEAD, n);
            // The sums of the other tile set are complete by now. Storing them earlier made a step 20 %
            // slower.
            if ODD {
                self.unit.store::<false, TILES>(self.sums_at(step - 1));
            } else if step > 0 {
                self.unit.store::<true, TILES>(self.sums_at(step - 1));
            }
            if step >= ACCUMULATE_LAG {
                self.add(step - ACCUMULATE_LAG, n);
            }
        }
    }

    /// Returns the chunk of both groups that contains a step.
    ///
    /// # Safety
    /// `step` is below the number of steps.
    #[inline(always)]
    unsafe fn part(&self, step: usize) -> GroupChunk<GROUPS> {
        let (p, first) = (self.product, step / Self::STEPS * CHUNK);
        // SAFETY: the step's first element is below `k` (function contract).
        unsafe { self.groups.part::<U::Int, D>(p, first, std::ptr::null()) }
    }

    /// Returns the address of a step's sums.
    #[inline(always)]
    fn sums_at(&self, step: usize) -> *mut ByteSums {
        // SAFETY: `step % ACCUMULATE_LAG` is in bounds of `sums`.
        unsafe { (&raw mut (*self.buffers).sums[step % ACCUMULATE_LAG]).cast() }
    }

    /// Loads the operands of a step into the even or odd tiles, if the step exists.
    ///
    /// # Safety
    /// - The CPU supports `U`.
    /// - The step is unpacked.
    #[inline(always)]
    unsafe fn load<const ODD: bool>(&mut self, step: usize, n: usize) {
        if step < n {
            // SAFETY: `step < n`, so its weights and activations are in the buffers (function contract).
            unsafe {
                let w = (&raw const (*self.buffers).weights[step % BUFFERED_STEPS]).cast::<u8>();
                let x = self
                    .x
                    .add(step * const { TILES * TILE_ROWS * 4 * quads::<U::Int, D>() });
                self.unit.load::<ODD, TILES>(w, x);
            }
        }
    }

    /// Unpacks the weights of an even or odd step, if the step exists.
    ///
    /// # Safety
    /// - The CPU supports `U`.
    /// - The operands satisfy the contract of [`multiply`](multiply()).
    #[inline(always)]
    unsafe fn unpack<const ODD: bool>(&mut self, step: usize, n: usize) {
        if step >= n {
            return;
        }
        // SAFETY: `step < n`, so the run's 8 words are readable in both groups.
        unsafe {
            let part = self.part(step);
            let run = step % Self::STEPS / (Self::STEPS / RUNS);
            let mut words = [[U::Int::splat(0); GROUPS]; RUN / 4];
            each_of_8!(U::Int, at => {
                if let Some(word) = word::<U::Int, D>(at, usize::from(ODD)) {
                    for g in 0..GROUPS {
                        words[word % const { quads::<U::Int, D>() }][g] = D::group_values(part.w[g], run, word);
                    }
                }
            });
            let to = (&raw mut (*self.buffers).weights[step % BUFFERED_STEPS]).cast::<u8>();
            for i in 0..const { quads::<U::Int, D>() } {
                U::store_quads(words[i], D::ZERO, to.add(i * TILE_WIDTH));
            }
        }
    }

    /// Computes the scales and minimums of a chunk.
    ///
    /// # Safety
    /// - The CPU supports `U`.
    /// - `part` is a chunk of the operands.
    #[inline(always)]
    unsafe fn store_scales(&mut self, part: &GroupChunk<GROUPS>, chunk: usize) {
        // SAFETY: the groups have `part.runs` runs, and `group_scales` initializes the scales before they are
        // read.
        unsafe {
            let from: *mut GroupScales = (&raw mut (*self.buffers).groups).cast();
            for g in 0..GROUPS {
                D::group_scales(part.w[g], part.runs, from.add(g));
            }
            for at in 0..part.runs * (Self::STEPS / RUNS) {
                let both = [GroupScales::scale(from, at), GroupScales::scale(from.add(1), at)];
                U::store_floats(both, &raw mut (*self.buffers).scales[chunk % 2][at]);
                if has_mins::<U::Int, D>() {
                    let both = [GroupScales::min(from, at), GroupScales::min(from.add(1), at)];
                    U::store_floats(both, &raw mut (*self.buffers).mins[chunk % 2][at]);
                }
            }
        }
    }

    /// Accumulates the sums of a step. After the last step of a chunk, adds the minimums.
    ///
    /// # Safety
    /// - The CPU supports `U`.
    /// - The sums of the step are stored, and the scales of its chunk are set.
    #[inline(always)]
    unsafe fn add(&mut self, step: usize, n: usize) {
        let (number, at) = (step / Self::STEPS, step % Self::STEPS);
        // SAFETY: the step's sums and scales are set (function contract).
        unsafe {
            let totals: *const ByteSums = self.sums_at(step);
            for half in 0..registers::<U>() {
                let lane = half * U::Float::LANES;
                let scale = U::Float::load((&raw const (*self.buffers).scales[number % 2][at][lane]).cast());
                for tile in 0..TILES {
                    for j in 0..BYTE_COLUMNS {
                        let [low, high] = &(*totals.add(tile)).0[j];
                        let low = U::Float::load_words((&raw const low[lane]).cast());
                        let high = U::Float::load_words((&raw const high[lane]).cast());
                        let total = U::Float::from_int(U::Float::plus(low, U::Float::shl(high, 8)));
                        let sum = &mut self.sums[tile][j][half];
                        *sum = total.mul_add(scale, *sum);
                    }
                }
            }
            if has_mins::<U::Int, D>() && (at + 1 == Self::STEPS || step + 1 == n) {
                self.add_mins(number, at + 1);
            }
        }
    }

    /// Adds the minimums of `steps` steps of a chunk times the sums of their activations.
    ///
    /// # Safety
    /// - The CPU supports `U`.
    /// - The minimums of the chunk are set.
    #[inline(always)]
    unsafe fn add_mins(&mut self, number: usize, steps: usize) {
        let p = self.product;
        for tile in 0..TILES {
            for half in 0..registers::<U>() {
                // SAFETY: columns are clamped to the last one, and the minimums of the chunk are set
                // (function contract).
                unsafe {
                    let mut mins = [U::Float::splat(0.0); BYTE_COLUMNS];
                    for at in 0..steps {
                        let lane = half * U::Float::LANES;
                        let min = U::Float::load((&raw const (*self.buffers).mins[number % 2][at][lane]).cast());
                        let (run, row) = if D::BY_16 {
                            (at / 2, sums_row::<U::Int, D>(at % 2))
                        } else {
                            (at, sums_row::<U::Int, D>(0))
                        };
                        for j in 0..BYTE_COLUMNS {
                            let column = (tile * BYTE_COLUMNS + j).min(p.n - 1);
                            let column = chunk(p.x.add(column * p.x_stride), number * CHUNK);
                            let sum_of_x = (&raw const (*column).sums[row][run]).read_unaligned();
                            mins[j] = min.mul_add(U::Float::splat(sum_of_x), mins[j]);
                        }
                    }
                    for j in 0..BYTE_COLUMNS {
                        self.sums[tile][j][half] = self.sums[tile][j][half].add(mins[j]);
                    }
                }
            }
        }
    }

    /// Writes the results.
    ///
    /// # Safety
    /// The CPU supports `U`.
    #[inline(always)]
    unsafe fn store_results(&self) {
        let (p, rows) = (self.product, self.groups.rows());
        for tile in 0..TILES {
            for j in 0..BYTE_COLUMNS {
                let column = tile * BYTE_COLUMNS + j;
                if column < p.n {
                    let mut sums = [[0.0f32; GROUP_ROWS]; GROUPS];
                    // SAFETY: the groups' 8 rows are below `p.m` and the column below `p.n`, which `out`
                    // covers.
                    unsafe {
                        let scale = U::Float::splat(I16Header::scale_at(p.x.add(column * p.x_stride)));
                        for half in 0..registers::<U>() {
                            let to = sums.as_flattened_mut().as_mut_ptr().add(half * U::Float::LANES);
                            self.sums[tile][j][half].mul(scale).store(to);
                        }
                        for g in 0..GROUPS {
                            let out = p.out.add(column * p.out_stride + rows[g]);
                            out.cast::<[f32; GROUP_ROWS]>().write_unaligned(sums[g]);
                        }
                    }
                }
            }
        }
    }
}

/// Returns the number of f32 registers that cover the rows of a tile.
const fn registers<U: ByteTileUnit>() -> usize {
    TILE_ROWS / U::Float::LANES
}
