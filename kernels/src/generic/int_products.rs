//! Products of weights as integers with activations as integers: see [`Unpack`] and [`I16Chunk`].
//!
//! Sums within a run are exact. Those of runs are added up in f32, in an order that only depends on the length of a row: an element of
//! the result has the same bits whatever other rows and columns are computed with it.

use std::mem::MaybeUninit;

use super::blocks::bytes_of;
use super::integers::{CHUNK, I16Chunk, I16Header, RUN, RUNS, Scales, Unpack};
use super::streams::Streams;
use crate::simd::{IntSimd, Simd};

/// A chunk of a product with all it needs. See [`matmul`](crate::matmul()) for the meaning.
#[derive(Clone, Copy)]
pub(crate) struct IntProduct {
    pub w: *const u8,
    pub row_stride: usize,
    pub m: usize,
    pub k: usize,
    /// Rows as [`quantize_i16`](super::integers::quantize_i16) writes them, `x_stride` bytes apart.
    pub x: *const u8,
    pub x_stride: usize,
    pub n: usize,
    pub out: *mut f32,
    pub out_stride: usize,
    /// As many floats as [`matmul_scratch`](crate::matmul_scratch) says.
    pub scratch: *mut f32,
    /// See [`MatMul::again`](crate::MatMul::again).
    pub again: bool,
}

impl IntProduct {
    /// That with the rows from row `i` on.
    #[inline(always)]
    pub(super) fn rows_from(&self, i: usize) -> IntProduct {
        IntProduct {
            w: self.w.wrapping_add(i * self.row_stride),
            m: self.m - i,
            out: self.out.wrapping_add(i),
            ..*self
        }
    }
}

/// Rows that are multiplied at a time with one column: as many streams from memory, each of which goes through neighbouring rows.
pub(super) const STREAMS: usize = 4;

/// The same with several columns, which come from the second-level cache once for all of them.
const STREAMS_OF_COLUMNS: usize = 8;

/// Columns for which weights are unpacked once.
const COLUMNS: usize = 8;

/// Bytes by which each stream is prefetched.
const AHEAD: usize = 1024;

const LINE: usize = 64;

/// Does the body for each of the 8 runs of a whole chunk, or registers of a run, whose number is then a constant if loops are
/// [unrolled](IntSimd::UNROLLED).
macro_rules! each_of_8 {
    ($V:ty, $i:ident => $body:block) => {
        if <$V>::UNROLLED {
            each_of_8!(@ $i $body 0 1 2 3 4 5 6 7);
        } else {
            for $i in 0..8 $body
        }
    };
    (@ $i:ident $body:block $($n:literal)*) => { $( { let $i = $n; $body } )* };
}
pub(super) use each_of_8;
const _: () = assert!(RUNS == 8);

/// One column: weights are unpacked in registers and never stored.
///
/// # Safety
/// The CPU has `V`'s instructions and `p` keeps the contract of [`matmul`](crate::matmul()).
#[inline(always)]
pub(crate) unsafe fn matvec<V: IntSimd, D: Unpack<V>>(p: &IntProduct) {
    let streams = Streams::<STREAMS>::new(p.m);
    let whole = p.k / CHUNK * CHUNK;
    let mut scales: [[Scales; 2]; STREAMS / 2] = Default::default();
    for i in 0..streams.turns() {
        // SAFETY: the caller's promise; rows lie below `m`, chunks below `k`.
        unsafe {
            let mut w = streams.rows(p.w, p.row_stride, i);
            let mut sums = [V::Float::splat(0.0); STREAMS];
            for c in (0..whole).step_by(CHUNK) {
                // All scales first: they take long to compute, which the work on other rows hides.
                for s in 0..STREAMS {
                    prefetch::<V, D, AHEAD>(w[s]);
                    D::scales(w[s], RUNS, &mut scales[s / 2][s % 2]);
                }
                for s in (0..STREAMS).step_by(2) {
                    // Loads of activations are not to be moved out of this loop: they would not fit the registers.
                    let (scales, x) = std::hint::black_box((&scales[s / 2], chunk(p.x, c)));
                    [sums[s], sums[s + 1]] = add_chunks::<V, D>([w[s], w[s + 1]], scales, x, [sums[s], sums[s + 1]]);
                }
                w = w.map(|w| w.wrapping_add(bytes_of::<D>(CHUNK)));
            }
            finish::<V, D>(p, &streams, i, w, sums);
        }
    }
}

/// Adds what follows the last whole chunk, at `w`, to the sums of the rows in turn `i`, and writes the results.
///
/// # Safety
/// As for [`matvec`].
#[inline(always)]
pub(super) unsafe fn finish<V: IntSimd, D: Unpack<V>>(
    p: &IntProduct,
    streams: &Streams<STREAMS>,
    i: usize,
    w: [*const u8; STREAMS],
    mut sums: [V::Float; STREAMS],
) {
    let whole = p.k / CHUNK * CHUNK;
    // SAFETY: the caller's promise; rows lie below `m`, chunks below `k`.
    unsafe {
        if whole < p.k {
            for s in 0..STREAMS {
                sums[s] = add_rest::<V, D>(w[s], (p.k - whole) / RUN, chunk(p.x, whole), sums[s]);
            }
        }
        let totals = V::Float::sum4(sums);
        let scale = I16Header::scale_at(p.x);
        for (s, total) in totals.into_iter().enumerate().take(streams.len(i)) {
            *p.out.add(streams.row(s, i)) = scale * total;
        }
    }
}

/// The chunk at element `c` of a row of activations.
///
/// # Safety
/// The row has that chunk.
#[inline(always)]
pub(super) unsafe fn chunk(x: *const u8, c: usize) -> *const I16Chunk {
    // SAFETY: the caller's promise.
    unsafe { x.add(size_of::<I16Header>()).cast::<I16Chunk>().add(c / CHUNK) }
}

/// Adds the products of a whole chunk of two rows to `sums`: the activations are loaded once.
///
/// # Safety
/// As for [`matvec`].
#[inline(always)]
unsafe fn add_chunks<V: IntSimd, D: Unpack<V>>(
    w: [*const u8; 2],
    scales: &[Scales; 2],
    x: *const I16Chunk,
    sums: [V::Float; 2],
) -> [V::Float; 2] {
    // SAFETY: the caller's promise.
    unsafe {
        // Two sums of each row take turns, so that additions overlap.
        let mut first = [sums[0], times_mins::<V>(D::HAS_MINS, mins_of::<V, D>(&scales[0]), x)];
        let mut second = [sums[1], times_mins::<V>(D::HAS_MINS, mins_of::<V, D>(&scales[1]), x)];
        each_of_8!(V, i => {
            let x = activations::<V>(x, i);
            first = [first[1], add_run::<V>(widened::<V, D>(w[0], i), x, scale_of::<V, D>(&scales[0], i), first[0])];
            second = [second[1], add_run::<V>(widened::<V, D>(w[1], i), x, scale_of::<V, D>(&scales[1], i), second[0])];
        });
        [first[0].add(first[1]), second[0].add(second[1])]
    }
}

/// Adds the product of the first `runs` runs of a chunk to `sum`.
///
/// # Safety
/// As for [`matvec`].
#[inline(always)]
unsafe fn add_rest<V: IntSimd, D: Unpack<V>>(w: *const u8, runs: usize, x: *const I16Chunk, sum: V::Float) -> V::Float {
    let mut scales = Scales::default();
    // SAFETY: the caller's promise.
    unsafe {
        D::scales(w, runs, &mut scales);
        let mut sums = [sum, times_mins::<V>(D::HAS_MINS, mins_of::<V, D>(&scales), x)];
        for i in 0..runs {
            let next = add_run::<V>(
                widened::<V, D>(w, i),
                activations::<V>(x, i),
                scale_of::<V, D>(&scales, i),
                sums[0],
            );
            sums = [sums[1], next];
        }
        sums[0].add(sums[1])
    }
}

/// Prefetches as many bytes as a chunk has, some bytes ahead of it.
///
/// # Safety
/// The CPU has `V`'s instructions.
#[inline(always)]
pub(super) unsafe fn prefetch<V: IntSimd, D: Unpack<V>, const AHEAD: usize>(w: *const u8) {
    for line in 0..bytes_of::<D>(CHUNK).div_ceil(LINE) {
        // SAFETY: any address may be prefetched.
        unsafe { V::prefetch(w.wrapping_add(AHEAD + line * LINE)) };
    }
}

/// The integers of a run, of 16 bits.
///
/// # Safety
/// As for [`Unpack`].
#[inline(always)]
unsafe fn widened<V: IntSimd, D: Unpack<V>>(w: *const u8, i: usize) -> [V; 2] {
    // SAFETY: the caller's promise.
    let values = unsafe { D::values(w, i) };
    if D::SIGNED {
        values.widen_signed()
    } else {
        values.widen()
    }
}

/// The scale of a run in the lanes of the sums that it applies to.
///
/// # Safety
/// The CPU has `V`'s instructions.
#[inline(always)]
unsafe fn scale_of<V: IntSimd, D: Unpack<V>>(scales: &Scales, i: usize) -> V::Float {
    // SAFETY: the caller's promise.
    unsafe {
        if D::BY_16 {
            V::halves(&scales.scales, i)
        } else {
            V::Float::splat(scales.scales[0][i])
        }
    }
}

/// The activations of run `i`.
///
/// # Safety
/// The CPU has `V`'s instructions.
#[inline(always)]
unsafe fn activations<V: IntSimd>(x: *const I16Chunk, i: usize) -> [V; 2] {
    // SAFETY: the caller's promise.
    unsafe {
        let x = (&raw const (*x).values[i]).cast::<u8>();
        [V::load(x), V::load(x.add(RUN))]
    }
}

/// Adds the product of a run: the sums in the low half of the lanes are those of the run's first 16 elements.
#[inline(always)]
fn add_run<V: IntSimd>(w: [V; 2], x: [V; 2], scale: V::Float, sum: V::Float) -> V::Float {
    let products = w[0].multiply_pairs(x[0]).add32(w[1].multiply_pairs(x[1]));
    products.to_floats().mul_add(scale, sum)
}

/// The minimums of both halves, which are the same where a run has one.
#[inline(always)]
pub(super) fn mins_of<V: IntSimd, D: Unpack<V>>(scales: &Scales) -> [&[f32; RUNS]; 2] {
    [&scales.mins[0], &scales.mins[usize::from(D::BY_16)]]
}

/// The minimums times the sums of activations.
///
/// # Safety
/// As for [`matvec`].
#[inline(always)]
pub(super) unsafe fn times_mins<V: IntSimd>(has_mins: bool, mins: [&[f32; RUNS]; 2], x: *const I16Chunk) -> V::Float {
    // SAFETY: the caller's promise; 8 lanes each.
    unsafe {
        if !has_mins {
            return V::Float::splat(0.0);
        }
        let sums = (&raw const (*x).sums[1]).cast::<f32>();
        let first = V::Float::load(sums).mul(V::Float::load(mins[0].as_ptr()));
        V::Float::load(sums.add(RUNS)).mul_add(V::Float::load(mins[1].as_ptr()), first)
    }
}

/// A chunk of a row of weights, unpacked for several columns.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Unpacked {
    /// Integers of 16 bits as [`I16Chunk::values`].
    values: [[[i16; RUN / 2]; 2]; RUNS],
    /// The scale of each lane of a run's sums.
    scales: [[f32; 8]; RUNS],
    mins: [[f32; RUNS]; 2],
    runs: usize,
    has_mins: bool,
}

/// Adds the products of an unpacked chunk with columns, whose chunks are some bytes apart, to sums, a register for each column.
pub(crate) type AddColumns = unsafe fn(w: &Unpacked, x: *const I16Chunk, x_stride: usize, sums: *mut Sum);

/// A register of floats.
#[derive(Clone, Copy)]
#[repr(C, align(32))]
pub(crate) struct Sum([f32; 8]);

/// The instantiations of [`add_columns`]: the one at `n - 1` is for `n` columns.
pub(crate) type AllColumns = [AddColumns];

/// Several columns: each chunk of a row is unpacked to memory once, for up to [`COLUMNS`] columns.
///
/// # Safety
/// As for [`matvec`].
#[inline(always)]
pub(crate) unsafe fn matmul<V: IntSimd, D: Unpack<V>>(p: &IntProduct, columns: &AllColumns) {
    let streams = Streams::new(p.m);
    let mut unpacked = [const { MaybeUninit::uninit() }; STREAMS_OF_COLUMNS];
    for j in (0..p.n).step_by(COLUMNS) {
        // SAFETY: the caller's promise; columns `j..j + n` lie below `p.n`.
        unsafe {
            let part = IntProduct {
                x: p.x.add(j * p.x_stride),
                n: COLUMNS.min(p.n - j),
                out: p.out.add(j * p.out_stride),
                ..*p
            };
            for i in 0..streams.turns() {
                rows_times_columns::<V, D>(&part, &streams, i, columns, &mut unpacked);
            }
        }
    }
}

/// One turn of the streams with up to [`COLUMNS`] columns.
///
/// # Safety
/// As for [`matvec`].
#[inline(always)]
unsafe fn rows_times_columns<V: IntSimd, D: Unpack<V>>(
    p: &IntProduct,
    streams: &Streams<STREAMS_OF_COLUMNS>,
    i: usize,
    columns: &AllColumns,
    unpacked: &mut [MaybeUninit<Unpacked>; STREAMS_OF_COLUMNS],
) {
    let (n, w) = (streams.len(i), streams.rows(p.w, p.row_stride, i));
    let mut sums = [[Sum([0.0; 8]); COLUMNS]; STREAMS_OF_COLUMNS];
    // SAFETY: the caller's promise; rows lie below `m`, chunks below `k`, columns below `p.n`.
    unsafe {
        for c in (0..p.k).step_by(CHUNK) {
            for s in 0..n {
                let w = w[s].add(bytes_of::<D>(c));
                prefetch::<V, D, AHEAD>(w);
                unpack::<V, D>(w, RUNS.min((p.k - c) / RUN), unpacked[s].as_mut_ptr());
            }
            for j in (0..p.n).step_by(columns.len()) {
                let x = chunk(p.x.add(j * p.x_stride), c);
                let add = columns[columns.len().min(p.n - j) - 1];
                for s in 0..n {
                    add(
                        unpacked[s].assume_init_ref(),
                        x,
                        p.x_stride,
                        sums[s].as_mut_ptr().add(j),
                    );
                }
            }
        }
        for (s, sums) in sums.iter().enumerate().take(n) {
            for (j, sum) in sums.iter().enumerate().take(p.n) {
                let scale = I16Header::scale_at(p.x.add(j * p.x_stride));
                *p.out.add(j * p.out_stride + streams.row(s, i)) = scale * V::Float::load(sum.0.as_ptr()).sum();
            }
        }
    }
}

/// Unpacks the first `runs` runs of a chunk.
///
/// # Safety
/// As for [`Unpack`]; `to` is valid for writes.
#[inline(always)]
unsafe fn unpack<V: IntSimd, D: Unpack<V>>(w: *const u8, runs: usize, to: *mut Unpacked) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut scales = Scales::default();
        if runs == RUNS {
            D::scales(w, RUNS, &mut scales);
            // Each scale is to be read from memory where it is used: see `quants::in_memory`.
            let scales = std::hint::black_box(&scales);
            each_of_8!(V, i => { unpack_run::<V, D>(w, i, scales, to) });
        } else {
            D::scales(w, runs, &mut scales);
            for i in 0..runs {
                unpack_run::<V, D>(w, i, &scales, to);
            }
        }
        let [first, second] = mins_of::<V, D>(&scales);
        (*to).mins = [*first, *second];
        (*to).runs = runs;
        (*to).has_mins = D::HAS_MINS;
    }
}

/// Unpacks one run.
///
/// # Safety
/// As for [`unpack`].
#[inline(always)]
unsafe fn unpack_run<V: IntSimd, D: Unpack<V>>(w: *const u8, i: usize, scales: &Scales, to: *mut Unpacked) {
    // SAFETY: the caller's promise.
    unsafe {
        let values = widened::<V, D>(w, i);
        values[0].store((&raw mut (*to).values[i][0]).cast());
        values[1].store((&raw mut (*to).values[i][1]).cast());
        scale_of::<V, D>(scales, i).store((&raw mut (*to).scales[i]).cast());
    }
}

/// Adds the products of an unpacked chunk with `N` columns, by the operations of [`add_chunks`].
///
/// # Safety
/// The CPU has `V`'s instructions, and there are as many columns and sums.
#[inline(always)]
pub(crate) unsafe fn add_columns<V: IntSimd, const N: usize>(
    w: &Unpacked,
    x: *const I16Chunk,
    x_stride: usize,
    to: *mut Sum,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut columns = [x; N];
        let mut sums = [[V::Float::splat(0.0); 2]; N];
        for j in 0..N {
            columns[j] = x.byte_add(j * x_stride);
            let of_mins = times_mins::<V>(w.has_mins, [&w.mins[0], &w.mins[1]], columns[j]);
            sums[j] = [V::Float::load(to.add(j).cast()), of_mins];
        }
        for i in 0..w.runs {
            let values = w.values[i].as_ptr().cast::<u8>();
            let values = [V::load(values), V::load(values.add(RUN))];
            let scale = V::Float::load(w.scales[i].as_ptr());
            for j in 0..N {
                let next = add_run::<V>(values, activations::<V>(columns[j], i), scale, sums[j][0]);
                sums[j] = [sums[j][1], next];
            }
        }
        for j in 0..N {
            sums[j][0].add(sums[j][1]).store(to.add(j).cast());
        }
    }
}
