//! Groups of interleaved rows: their blocks to integers, and the product with one column. See [`interleaved`](crate::interleaved).
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
const AHEAD: usize = 2048;

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

/// One column times groups of rows: `p.m` is a multiple of [`GROUP_ROWS`], `p.row_stride` an eighth of what a group takes.
///
/// # Safety
/// The CPU has `V`'s instructions and `p` keeps the contract of [`matmul`](crate::matmul()).
#[inline(always)]
pub(crate) unsafe fn matvec<V: IntSimd, D: UnpackGroup<V>>(p: &IntProduct) {
    let mut scales = MaybeUninit::<GroupScales>::uninit();
    // SAFETY: the caller's promise; groups lie below `m`, chunks below `k`. Scales are set before they are read.
    unsafe {
        let scale = V::Float::splat(I16Header::scale_at(p.x));
        for i in (0..p.m).step_by(GROUP_ROWS) {
            let mut w = p.w.add(i * p.row_stride);
            let mut sum = V::Float::splat(0.0);
            for c in (0..p.k).step_by(CHUNK) {
                let runs = RUNS.min((p.k - c) / RUN);
                prefetch::<V, D>(w);
                D::group_scales(w, runs, scales.as_mut_ptr());
                sum = add_chunk::<V, D>(w, runs, scales.as_ptr(), chunk(p.x, c), sum);
                w = w.wrapping_add(GROUP_ROWS * bytes_of::<D>(CHUNK));
            }
            sum.mul(scale).store(p.out.add(i));
        }
    }
}

/// Prefetches what follows a chunk of a group.
///
/// # Safety
/// The CPU has `V`'s instructions.
#[inline(always)]
unsafe fn prefetch<V: IntSimd, D: UnpackGroup<V>>(w: *const u8) {
    for line in 0..(GROUP_ROWS * bytes_of::<D>(CHUNK)).div_ceil(LINE) {
        // SAFETY: any address may be prefetched.
        unsafe { V::prefetch(w.wrapping_add(AHEAD + line * LINE)) };
    }
}

/// Adds the product of a chunk, by the same floating-point operations as panels: see [`panel_products`](super::panel_products).
///
/// # Safety
/// As for [`matvec`].
#[inline(always)]
unsafe fn add_chunk<V: IntSimd, D: UnpackGroup<V>>(
    w: *const u8,
    runs: usize,
    scales: *const GroupScales,
    x: *const I16Chunk,
    sum: V::Float,
) -> V::Float {
    // SAFETY: the caller's promise.
    unsafe {
        let mut sums = [sum, V::Float::splat(0.0)];
        if runs == RUNS {
            each_of_8!(V, i => { sums = add_run::<V, D>(w, i, scales, x, sums) });
        } else {
            for i in 0..runs {
                sums = add_run::<V, D>(w, i, scales, x, sums);
            }
        }
        if D::HAS_MINS { sums[0].add(sums[1]) } else { sums[0] }
    }
}

/// Adds the products of run `i` to the first sum, its minimums to the second.
///
/// # Safety
/// As for [`matvec`].
#[inline(always)]
unsafe fn add_run<V: IntSimd, D: UnpackGroup<V>>(
    w: *const u8,
    i: usize,
    scales: *const GroupScales,
    x: *const I16Chunk,
    mut sums: [V::Float; 2],
) -> [V::Float; 2] {
    // SAFETY: the caller's promise; a run has 8 registers.
    unsafe {
        let mut totals = [V::splat(0); 2];
        let values = (&raw const (*x).values[i]).cast::<u8>();
        each_of_8!(V, j => {
            let word = D::group_values(w, i, j);
            let [even, odd] = if D::SIGNED { word.widen_signed() } else { word.widen() };
            let of = if D::BY_16 { j / 4 } else { 0 };
            totals[of] = totals[of].add32(even.multiply_pairs(V::broadcast(values.add(4 * j))));
            totals[of] = totals[of].add32(odd.multiply_pairs(V::broadcast(values.add(RUN + 4 * j))));
        });
        for half in 0..if D::BY_16 { 2 } else { 1 } {
            let at = if D::BY_16 { 2 * i + half } else { i };
            let scale = GroupScales::scale(scales, at);
            sums[0] = totals[half].to_floats().mul_add(scale, sums[0]);
            if D::HAS_MINS {
                let of_x = if D::BY_16 {
                    I16Chunk::of_half(x.cast(), at)
                } else {
                    I16Chunk::of_run(x.cast(), i)
                };
                let min: V::Float = GroupScales::min(scales, at);
                sums[1] = min.mul_add(V::Float::splat(of_x), sums[1]);
            }
        }
        sums
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
        if runs == RUNS {
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
