//! Two groups of interleaved rows times some columns, by a unit that multiplies tiles of bytes: the same bits as [`groups`](super::interleaved8).
//!
//! The two parts of a column are two rows of a tile, so that one product of tiles gives both sums. A step is what has one scale: a run of weights, or half of one.
//! Weights are unpacked some steps ahead, and sums are added up some steps behind, so that nothing waits for what was just begun.

use std::marker::PhantomData;
use std::mem::MaybeUninit;

use super::interleaved8_schedule::{Groups, Order, Part};
use super::interleaved8::{GroupScales, UnpackGroup, has_mins, prefetch, row_of_sums, word};
use super::int_products::{IntProduct, chunk, each_of_8};
use super::integers::{CHUNK, I16Header, RUN, RUNS, Unpack};
use super::pack::{HALVES, LANES};
use crate::interleaved::GROUP_ROWS;
use crate::simd::byte_tiles::{BYTE_COLUMNS, ByteSums, ByteTileUnit, MOST_TILES};
use crate::simd::tiles::{TILE_ROWS, TILE_WIDTH};
use crate::simd::{IntSimd, Simd};

/// Columns from which on tiles are faster than registers.
pub(crate) const LEAST_BYTE_COLUMNS: usize = 5;

/// Groups that are multiplied together: the rows of a tile.
const GROUPS: usize = TILE_ROWS / GROUP_ROWS;

/// Steps that weights are unpacked ahead.
const AHEAD: usize = 2;

/// Steps whose weights are kept: a power of two.
const KEPT: usize = 4;
const _: () = assert!(AHEAD < KEPT);

/// Steps that sums are added up behind.
const BEHIND: usize = 2;

/// What columns as tiles are aligned to, as [`Buffers`] are.
const ALIGN: usize = 4096;

/// Columns that are multiplied together at most.
pub(crate) const MOST_BYTE_COLUMNS: usize = MOST_TILES * BYTE_COLUMNS;

/// Floats of scratch memory for products with `n` columns: all of them as tiles.
pub(crate) const fn byte_tile_scratch(k: usize, n: usize) -> usize {
    if n < LEAST_BYTE_COLUMNS {
        return 0;
    }
    let bytes = MOST_TILES * TILE_ROWS * k.next_multiple_of(RUN) + ALIGN;
    n.div_ceil(MOST_BYTE_COLUMNS) * (bytes / size_of::<f32>())
}

/// What is unpacked, and what is to be added up. It is all in one place and small, with room for the sums of two steps: with four a run took a fifth longer, presumably
/// because a load waits for stores under way whose addresses have the same last 12 bits.
#[repr(C, align(4096))]
struct Buffers<const TILES: usize> {
    /// Of each step a row of a tile for each quad.
    weights: [[u8; RUN / 4 * TILE_WIDTH]; KEPT],
    sums: [[ByteSums; TILES]; BEHIND],
    /// What each step of a chunk is multiplied with, a row in each lane, and of the chunk before.
    scales: [[[f32; TILE_ROWS]; HALVES]; 2],
    mins: [[[f32; TILE_ROWS]; HALVES]; 2],
    /// The same of each group.
    groups: [GroupScales; GROUPS],
}

/// Sums of floats: of each column those of the rows of a tile, in as many registers as that takes.
type Sums<F, const TILES: usize> = [[[F; 2]; BYTE_COLUMNS]; TILES];

/// Two groups of rows and all that their product needs.
struct Pair<'a, U: ByteTileUnit, D, const TILES: usize> {
    product: &'a IntProduct,
    /// The columns as [`put_columns`] writes them.
    x: *const u8,
    groups: Groups<GROUPS>,
    unit: &'a mut U,
    buffers: *mut Buffers<TILES>,
    sums: Sums<U::Float, TILES>,
    by: PhantomData<D>,
}

/// Up to `TILES` times [`BYTE_COLUMNS`] columns times groups of rows.
///
/// # Safety
/// As for [`interleaved8::multiply`](super::interleaved8::multiply), and the CPU has the unit; no other unit for tiles is in use in this thread. There is scratch memory of
/// [`byte_tile_scratch`] for them, which has them as tiles already if this is done [again](IntProduct::again).
#[inline(always)]
pub(crate) unsafe fn multiply<U: ByteTileUnit, D: UnpackGroup<U::Int>, const TILES: usize>(p: &IntProduct) {
    const { assert!(TILES <= MOST_TILES && GROUP_ROWS == LANES) };
    let mut buffers = MaybeUninit::<Buffers<TILES>>::uninit();
    let order = Order::<GROUPS>::of_streams(p);
    // SAFETY: the caller's promise; scratch memory has room for the columns and to align them. What is read of the buffers was written before.
    unsafe {
        let x = p.scratch.cast::<u8>();
        let x = x.add(x.align_offset(ALIGN));
        if !p.again {
            put_columns::<U, D, TILES>(p, x);
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
            pair.put();
        }
    }
}

/// Quads of a step.
const fn quads<V: IntSimd, D: Unpack<V>>() -> usize {
    if D::BY_16 { RUN / 8 } else { RUN / 4 }
}

/// Steps of a chunk.
const fn steps_of_chunk<V: IntSimd, D: Unpack<V>>() -> usize {
    RUN / 4 * RUNS / quads::<V, D>()
}

/// Writes the columns as tiles, for each step one after the other; columns that there are not as zeros.
///
/// # Safety
/// As for [`multiply`].
#[inline(always)]
unsafe fn put_columns<U: ByteTileUnit, D: UnpackGroup<U::Int>, const TILES: usize>(p: &IntProduct, to: *mut u8) {
    const ZEROS: [[u8; RUN]; 2] = [[0; RUN]; 2];
    for j in 0..TILES * BYTE_COLUMNS {
        let (tile, row) = (j / BYTE_COLUMNS, 2 * (j % BYTE_COLUMNS));
        for run in 0..p.k / RUN {
            // SAFETY: the caller's promise; the steps of all runs fit the scratch memory.
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
                    // Both rows in one go.
                    let tile = to.add((run * TILES + tile) * TILE_ROWS * RUN);
                    tile.add(row * RUN).cast::<[[u8; RUN]; 2]>().write(parts);
                }
            }
        }
    }
}

impl<U: ByteTileUnit, D: UnpackGroup<U::Int>, const TILES: usize> Pair<'_, U, D, TILES> {
    const STEPS: usize = steps_of_chunk::<U::Int, D>();

    /// Adds up all steps.
    ///
    /// # Safety
    /// As for [`multiply`].
    #[inline(always)]
    unsafe fn multiply(&mut self) {
        let n = self.product.k / RUN * (Self::STEPS / RUNS);
        // SAFETY: the caller's promise; steps lie below `n`. Each is unpacked, loaded, multiplied, written and added up in this order.
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
            let last = self.sums_of(n - 1);
            if n.is_multiple_of(2) {
                self.unit.store::<true, TILES>(last);
            } else {
                self.unit.store::<false, TILES>(last);
            }
            for step in n.saturating_sub(BEHIND)..n {
                self.add(step, n);
            }
        }
    }

    /// One step, and what there is to do for others meanwhile.
    ///
    /// # Safety
    /// As for [`multiply`].
    #[inline(always)]
    unsafe fn step<const ODD: bool>(&mut self, step: usize, n: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            if const { D::SIGNED || D::ZERO > 0 } {
                self.unit.multiply::<ODD, TILES, true>();
            } else {
                self.unit.multiply::<ODD, TILES, false>();
            }
            // Into the other tiles.
            if ODD {
                self.load::<false>(step + 1, n);
            } else {
                self.load::<true>(step + 1, n);
            }
            if !(D::BY_16 && ODD) {
                let part = self.part(step);
                if !ODD && step.is_multiple_of(Self::STEPS) {
                    self.put_scales(&part, step / Self::STEPS);
                }
                prefetch::<U::Int, D, GROUPS>(&part, step % Self::STEPS / (Self::STEPS / RUNS));
            }
            self.unpack::<ODD>(step + AHEAD, n);
            // The sums of the other tiles, which are there by now: asked for earlier, a step took a fifth longer.
            if ODD {
                self.unit.store::<false, TILES>(self.sums_of(step - 1));
            } else if step > 0 {
                self.unit.store::<true, TILES>(self.sums_of(step - 1));
            }
            if step >= BEHIND {
                self.add(step - BEHIND, n);
            }
        }
    }

    /// The chunk of both groups that has a step.
    ///
    /// # Safety
    /// As for [`multiply`].
    #[inline(always)]
    unsafe fn part(&self, step: usize) -> Part<GROUPS> {
        let (p, first) = (self.product, step / Self::STEPS * CHUNK);
        // SAFETY: the caller's promise.
        unsafe { self.groups.part::<U::Int, D>(p, first, std::ptr::null()) }
    }

    /// Where the sums of a step go.
    #[inline(always)]
    fn sums_of(&self, step: usize) -> *mut ByteSums {
        // SAFETY: an address within the buffers.
        unsafe { (&raw mut (*self.buffers).sums[step % BEHIND]).cast() }
    }

    /// Has the unit load the operands of a step with an even or odd number, if there is one.
    ///
    /// # Safety
    /// As for [`multiply`]; the step is unpacked.
    #[inline(always)]
    unsafe fn load<const ODD: bool>(&mut self, step: usize, n: usize) {
        if step < n {
            // SAFETY: the caller's promise.
            unsafe {
                let w = (&raw const (*self.buffers).weights[step % KEPT]).cast::<u8>();
                let x = self
                    .x
                    .add(step * const { TILES * TILE_ROWS * 4 * quads::<U::Int, D>() });
                self.unit.load::<ODD, TILES>(w, x);
            }
        }
    }

    /// Unpacks the weights of a step with an even or odd number, if there is one.
    ///
    /// # Safety
    /// As for [`multiply`].
    #[inline(always)]
    unsafe fn unpack<const ODD: bool>(&mut self, step: usize, n: usize) {
        if step >= n {
            return;
        }
        // SAFETY: the caller's promise; a run has 8 registers.
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
            let to = (&raw mut (*self.buffers).weights[step % KEPT]).cast::<u8>();
            for i in 0..const { quads::<U::Int, D>() } {
                U::put_quads(words[i], D::ZERO, to.add(i * TILE_WIDTH));
            }
        }
    }

    /// Writes the scales and minimums of a chunk.
    ///
    /// # Safety
    /// As for [`multiply`].
    #[inline(always)]
    unsafe fn put_scales(&mut self, part: &Part<GROUPS>, chunk: usize) {
        // SAFETY: the caller's promise. Scales of the runs are set before they are read.
        unsafe {
            let from: *mut GroupScales = (&raw mut (*self.buffers).groups).cast();
            for g in 0..GROUPS {
                D::group_scales(part.w[g], part.runs, from.add(g));
            }
            for at in 0..part.runs * (Self::STEPS / RUNS) {
                let both = [GroupScales::scale(from, at), GroupScales::scale(from.add(1), at)];
                U::put_floats(both, &raw mut (*self.buffers).scales[chunk % 2][at]);
                if has_mins::<U::Int, D>() {
                    let both = [GroupScales::min(from, at), GroupScales::min(from.add(1), at)];
                    U::put_floats(both, &raw mut (*self.buffers).mins[chunk % 2][at]);
                }
            }
        }
    }

    /// Adds a step to the sums; after the last one of a chunk its minimums, too.
    ///
    /// # Safety
    /// As for [`multiply`].
    #[inline(always)]
    unsafe fn add(&mut self, step: usize, n: usize) {
        let (number, at) = (step / Self::STEPS, step % Self::STEPS);
        // SAFETY: the caller's promise.
        unsafe {
            let totals: *const ByteSums = self.sums_of(step);
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

    /// Adds the minimums of the `steps` steps of a chunk, times the sums of their activations.
    ///
    /// # Safety
    /// As for [`multiply`].
    #[inline(always)]
    unsafe fn add_mins(&mut self, number: usize, steps: usize) {
        let p = self.product;
        for tile in 0..TILES {
            for half in 0..registers::<U>() {
                // SAFETY: the caller's promise. Columns that there are not get the minimums of the last one.
                unsafe {
                    let mut mins = [U::Float::splat(0.0); BYTE_COLUMNS];
                    for at in 0..steps {
                        let lane = half * U::Float::LANES;
                        let min = U::Float::load((&raw const (*self.buffers).mins[number % 2][at][lane]).cast());
                        let (run, row) = if D::BY_16 {
                            (at / 2, row_of_sums::<U::Int, D>(at % 2))
                        } else {
                            (at, row_of_sums::<U::Int, D>(0))
                        };
                        for j in 0..BYTE_COLUMNS {
                            let column = (tile * BYTE_COLUMNS + j).min(p.n - 1);
                            let column = chunk(p.x.add(column * p.x_stride), number * CHUNK);
                            let of_x = (&raw const (*column).sums[row][run]).read_unaligned();
                            mins[j] = min.mul_add(U::Float::splat(of_x), mins[j]);
                        }
                    }
                    for j in 0..BYTE_COLUMNS {
                        self.sums[tile][j][half] = self.sums[tile][j][half].add(mins[j]);
                    }
                }
            }
        }
    }

    /// Writes the sums as results.
    ///
    /// # Safety
    /// As for [`multiply`].
    #[inline(always)]
    unsafe fn put(&self) {
        let (p, rows) = (self.product, self.groups.rows());
        for tile in 0..TILES {
            for j in 0..BYTE_COLUMNS {
                let column = tile * BYTE_COLUMNS + j;
                if column < p.n {
                    let mut sums = [[0.0f32; GROUP_ROWS]; GROUPS];
                    // SAFETY: the caller's promise: rows of groups that the result has.
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

/// Registers of floats that hold a lane for each row of a tile.
const fn registers<U: ByteTileUnit>() -> usize {
    TILE_ROWS / U::Float::LANES
}
