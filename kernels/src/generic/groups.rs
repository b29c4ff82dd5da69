//! Groups of interleaved rows: their blocks to integers, and the product with a few columns. See [`interleaved`](crate::interleaved).
//!
//! A register holds 4 neighbouring weights of each row, so that a lane of 32 bits belongs to one row: sums need not be added up across lanes, and the scales
//! of the rows are the lanes of a register, too.

use std::mem::MaybeUninit;

use super::blocks::bytes_of;
use super::int_products::{IntProduct, chunk, each_of_8};
use super::integers::{CHUNK, I16Chunk, I16Header, RUN, RUNS, Unpack};
use super::panels::{HALVES, LANES, PanelChunk, PanelValues, Sums};
use crate::interleaved::{GROUP_ROWS, Interleaved};
use crate::simd::{IntSimd, Simd};

/// Registers of a run.
const WORDS: usize = RUN / 4;

/// Bytes by which a group is prefetched: it is read as one stream.
const AHEAD: usize = 4096;

const LINE: usize = 64;

const _: () = assert!(GROUP_ROWS == LANES);

/// What turns the integers of a chunk into weights, a row in each lane: for each half of a run if the type is [`BY_16`](Unpack::BY_16), else for
/// each run.
#[repr(C, align(64))]
pub(crate) struct GroupScales {
    pub scales: [[f32; LANES]; HALVES],
    /// Not set if the type has none.
    pub mins: [[f32; LANES]; HALVES],
}

impl GroupScales {
    /// Sets scale `i`, and the minimum for integers around `zero`.
    ///
    /// # Safety
    /// The CPU has `V`'s instructions and `to` is valid for writes.
    #[inline(always)]
    pub(crate) unsafe fn set<V: Simd>(to: *mut GroupScales, i: usize, scale: V, zero: f32) {
        // SAFETY: 8 lanes each.
        unsafe {
            scale.store((&raw mut (*to).scales[i]).cast());
            if zero != 0.0 {
                Self::set_min(to, i, scale.mul(V::splat(-zero)));
            }
        }
    }

    /// Sets minimum `i`.
    ///
    /// # Safety
    /// As for [`set`](GroupScales::set).
    #[inline(always)]
    pub(crate) unsafe fn set_min<V: Simd>(to: *mut GroupScales, i: usize, min: V) {
        // SAFETY: 8 lanes.
        unsafe { min.store((&raw mut (*to).mins[i]).cast()) }
    }

    /// Scale `i`.
    ///
    /// # Safety
    /// The CPU has `V`'s instructions, and the scale was set.
    #[inline(always)]
    unsafe fn scale<V: Simd>(from: *const GroupScales, i: usize) -> V {
        // SAFETY: 8 lanes.
        unsafe { V::load((&raw const (*from).scales[i]).cast()) }
    }

    /// Minimum `i`.
    ///
    /// # Safety
    /// The CPU has `V`'s instructions, and the minimum was set.
    #[inline(always)]
    unsafe fn min<V: Simd>(from: *const GroupScales, i: usize) -> V {
        // SAFETY: 8 lanes.
        unsafe { V::load((&raw const (*from).mins[i]).cast()) }
    }
}

/// A type of which groups of rows can be unpacked.
///
/// # Safety
/// As for [`Unpack`]; `p` is where a chunk of a group starts.
pub(crate) trait UnpackGroup<V: IntSimd>: Unpack<V> + Interleaved {
    /// Whether bits of runs lie at different positions, so that code for a run with a known number is faster.
    const RUNS_DIFFER: bool = Self::TYPE.block_size() > RUN;

    /// Sets the scales and minimums of the first `runs` runs of a chunk.
    unsafe fn group_scales(p: *const u8, runs: usize, to: *mut GroupScales);

    /// Weights `4 j` to `4 j + 3` of run `i` of a chunk, of each row. `i` and `j` are mostly constants once inlined.
    unsafe fn group_values(p: *const u8, i: usize, j: usize) -> V;
}

/// Where the bytes of a run lie that are in a register together.
#[derive(Clone, Copy)]
pub(crate) struct RunBytes {
    p: *const u8,
    /// Bytes from one byte of a block to the next.
    step: usize,
}

impl RunBytes {
    /// 32 neighbouring bytes of a row's block at `p`.
    #[inline(always)]
    pub(crate) fn of_row(p: *const u8) -> RunBytes {
        RunBytes { p, step: 1 }
    }

    /// Bytes `4 j` to `4 j + 3` of each row of a group, whose block is at `p`.
    #[inline(always)]
    pub(crate) fn of_group(p: *const u8, j: usize) -> RunBytes {
        RunBytes {
            p: p.wrapping_add(j * 4 * GROUP_ROWS),
            step: GROUP_ROWS,
        }
    }

    /// Those from byte `at` of the block on.
    ///
    /// # Safety
    /// As for [`Unpack`].
    #[inline(always)]
    pub(crate) unsafe fn load<V: IntSimd>(self, at: usize) -> V {
        // SAFETY: the caller's promise.
        unsafe { V::load(self.p.add(at * self.step)) }
    }
}

/// What 16 bytes hold as low and high nibbles, of each row of a group: the values of `word` j, given the offset of the bytes in the group's block.
///
/// # Safety
/// As for [`UnpackGroup`].
#[inline(always)]
pub(crate) unsafe fn nibbles_of_group<V: IntSimd>(p: *const u8, at: usize, j: usize) -> V {
    // SAFETY: the caller's promise.
    unsafe {
        let both: V = RunBytes::of_group(p, j % 4).load(at);
        let nibbles = if j < 4 { both } else { both.shr(4) };
        nibbles.and(V::splat(15))
    }
}

/// Byte `at` of the blocks of a group.
///
/// # Safety
/// As for [`UnpackGroup`].
#[inline(always)]
pub(crate) unsafe fn bytes_of_group<V: Simd>(p: *const u8, at: usize) -> V::Int {
    // SAFETY: the caller's promise.
    unsafe { V::load_u8(p.add(GROUP_ROWS * at)) }
}

/// The half floats at byte `at` of the blocks of a group.
///
/// # Safety
/// As for [`UnpackGroup`].
#[inline(always)]
pub(crate) unsafe fn halves_of_group<V: Simd>(p: *const u8, at: usize) -> V {
    // SAFETY: the caller's promise.
    unsafe { V::load_f16(p.add(GROUP_ROWS * at)) }
}

const _: () = assert!(WORDS == RUNS);

/// `N` columns times groups of rows: `p.m` is a multiple of [`GROUP_ROWS`], `p.row_stride` an eighth of what a group takes. Weights are unpacked in
/// registers and never stored. An element has the same bits for any `N`.
///
/// # Safety
/// The CPU has `V`'s instructions and `p` keeps the contract of [`matmul`](crate::matmul()), with at least `N` columns.
#[inline(always)]
pub(crate) unsafe fn multiply<V: IntSimd, D: UnpackGroup<V>, const N: usize>(p: &IntProduct) {
    let mut scales = MaybeUninit::<GroupScales>::uninit();
    for i in (0..p.m).step_by(GROUP_ROWS) {
        // SAFETY: the caller's promise; groups lie below `m`, chunks below `k`. Scales are set before they are read.
        unsafe {
            let mut w = p.w.add(i * p.row_stride);
            let mut sums = [V::Float::splat(0.0); N];
            for c in (0..p.k).step_by(CHUNK) {
                let runs = RUNS.min((p.k - c) / RUN);
                D::group_scales(w, runs, scales.as_mut_ptr());
                let x = Columns {
                    first: chunk(p.x, c),
                    stride: p.x_stride,
                };
                sums = add_chunk::<V, D, N>(w, runs, scales.as_ptr(), x, sums);
                w = w.wrapping_add(GROUP_ROWS * bytes_of::<D>(CHUNK));
            }
            for j in 0..N {
                let scale = V::Float::splat(I16Header::scale_at(p.x.add(j * p.x_stride)));
                sums[j].mul(scale).store(p.out.add(j * p.out_stride + i));
            }
        }
    }
}

/// A chunk of each of several columns.
#[derive(Clone, Copy)]
struct Columns {
    first: *const I16Chunk,
    /// Bytes from one to the next.
    stride: usize,
}

impl Columns {
    #[inline(always)]
    fn get(self, j: usize) -> *const I16Chunk {
        self.first.wrapping_byte_add(j * self.stride)
    }
}

/// Prefetches what follows run `i` of a chunk by some distance. A run at a time, because more at once than a core has buffers for would hold up other loads.
///
/// # Safety
/// The CPU has `V`'s instructions.
#[inline(always)]
unsafe fn prefetch<V: IntSimd, D: UnpackGroup<V>>(w: *const u8, i: usize) {
    let of_run = GROUP_ROWS * bytes_of::<D>(CHUNK) / RUNS;
    for line in 0..of_run.div_ceil(LINE) {
        // SAFETY: any address may be prefetched.
        unsafe { V::prefetch(w.wrapping_add(AHEAD + i * of_run + line * LINE)) };
    }
}

/// Adds the products of a chunk, by the same floating-point operations as panels: see [`panel_products`](super::panel_products).
///
/// # Safety
/// As for [`multiply`].
#[inline(always)]
unsafe fn add_chunk<V: IntSimd, D: UnpackGroup<V>, const N: usize>(
    w: *const u8,
    runs: usize,
    scales: *const GroupScales,
    x: Columns,
    mut sums: [V::Float; N],
) -> [V::Float; N] {
    // SAFETY: the caller's promise.
    unsafe {
        let mut mins = [V::Float::splat(0.0); N];
        if D::RUNS_DIFFER && runs == RUNS {
            each_of_8!(V, i => { add_run::<V, D, N>(w, i, scales, x, &mut sums, &mut mins) });
        } else {
            for i in 0..runs {
                add_run::<V, D, N>(w, i, scales, x, &mut sums, &mut mins);
            }
        }
        if D::HAS_MINS {
            for j in 0..N {
                sums[j] = sums[j].add(mins[j]);
            }
        }
        sums
    }
}

/// Adds the products of run `i` to `sums`, its minimums to `mins`.
///
/// # Safety
/// As for [`multiply`].
#[inline(always)]
unsafe fn add_run<V: IntSimd, D: UnpackGroup<V>, const N: usize>(
    w: *const u8,
    i: usize,
    scales: *const GroupScales,
    x: Columns,
    sums: &mut [V::Float; N],
    mins: &mut [V::Float; N],
) {
    // SAFETY: the caller's promise; a type that is `BY_16` has scales for both halves.
    unsafe {
        prefetch::<V, D>(w, i);
        if D::BY_16 {
            add_words::<V, D, N>(w, i, 0, scales, x, sums, mins);
            add_words::<V, D, N>(w, i, 1, scales, x, sums, mins);
        } else {
            add_words::<V, D, N>(w, i, 0, scales, x, sums, mins);
        }
    }
}

/// Adds what belongs to one scale: run `i`, or a half of it.
///
/// # Safety
/// As for [`multiply`].
#[inline(always)]
unsafe fn add_words<V: IntSimd, D: UnpackGroup<V>, const N: usize>(
    w: *const u8,
    i: usize,
    half: usize,
    scales: *const GroupScales,
    x: Columns,
    sums: &mut [V::Float; N],
    mins: &mut [V::Float; N],
) {
    let at = if D::BY_16 { 2 * i + half } else { i };
    // SAFETY: the caller's promise; a run has 8 registers.
    unsafe {
        let mut totals = [V::splat(0); N];
        each_of_8!(V, word => {
            if !D::BY_16 || word / 4 == half {
                let values = D::group_values(w, i, word);
                let [even, odd] = if D::SIGNED { values.widen_signed() } else { values.widen() };
                for j in 0..N {
                    let x = (&raw const (*x.get(j)).values[i]).cast::<u8>();
                    let of_even = even.multiply_pairs(V::broadcast(x.add(4 * word)));
                    let of_odd = odd.multiply_pairs(V::broadcast(x.add(RUN + 4 * word)));
                    totals[j] = totals[j].add32(of_even).add32(of_odd);
                }
            }
        });
        let scale = GroupScales::scale(scales, at);
        for j in 0..N {
            sums[j] = totals[j].to_floats().mul_add(scale, sums[j]);
            if D::HAS_MINS {
                let x = x.get(j).cast();
                let of_x = if D::BY_16 {
                    I16Chunk::of_half(x, at)
                } else {
                    I16Chunk::of_run(x, i)
                };
                let min: V::Float = GroupScales::min(scales, at);
                mins[j] = min.mul_add(V::Float::splat(of_x), mins[j]);
            }
        }
    }
}

/// Fills the part of a panel's chunk that a group is, from the group's chunk at `p`.
///
/// # Safety
/// As for [`UnpackGroup`]; `to` is valid for writes.
#[inline(always)]
pub(crate) unsafe fn fill_group<V: IntSimd, D: UnpackGroup<V>, F: PanelValues>(
    p: *const u8,
    runs: usize,
    group: usize,
    to: &mut PanelChunk<F>,
) {
    let mut scales = MaybeUninit::<GroupScales>::uninit();
    // SAFETY: the caller's promise. Scales of the runs are set before they are read.
    unsafe {
        D::group_scales(p, runs, scales.as_mut_ptr());
        for half in 0..2 * runs {
            let at = if D::BY_16 { half } else { half / 2 };
            let scale: V::Float = GroupScales::scale(scales.as_ptr(), at);
            scale.store(to.scales[half][group].as_mut_ptr());
            if D::HAS_MINS {
                let min: V::Float = GroupScales::min(scales.as_ptr(), at);
                min.store(to.mins[half][group].as_mut_ptr());
            }
        }
        if D::RUNS_DIFFER && runs == RUNS {
            each_of_8!(V, i => { put_run::<V, D, F>(p, i, group, to) });
        } else {
            for i in 0..runs {
                put_run::<V, D, F>(p, i, group, to);
            }
        }
    }
}

/// A function that is [`fill_group`] for some type.
pub(crate) type FillGroup<F> = unsafe fn(*const u8, usize, usize, &mut PanelChunk<F>);

/// Puts one run of a group.
///
/// # Safety
/// As for [`fill_group`].
#[inline(always)]
unsafe fn put_run<V: IntSimd, D: UnpackGroup<V>, F: PanelValues>(
    p: *const u8,
    i: usize,
    group: usize,
    to: &mut PanelChunk<F>,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut words = [V::splat(0); WORDS];
        each_of_8!(V, j => { words[j] = D::group_values(p, i, j) });
        to.values.put(i, group, words, D::SIGNED);
    }
}
