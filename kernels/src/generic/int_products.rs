//! Skinny matmuls of weights in file layout: 8-bit weights times 16-bit activations, for 1 to 8 columns.
//!
//! See [`Unpack`] for the weights and [`I16Chunk`] for the activations. Rows are read as several memory
//! streams ([`Streams`]); rows `s` of a step are `n_steps` apart.
//!
//! ```text
//! matvec (1 column):                                 matmul (several columns):
//! for step in streams:           # 4 rows            for step in streams:           # 8 rows
//!     sums[4] = 0.0              # f32, 8 lanes          for chunk in row:
//!     for chunk in row:                                      unpack 8 rows to L1     # i16, scales
//!         scales of all 4 rows                               for columns in tiles:
//!         for pair of rows:                                      sums += run products * scale
//!             for run in 0..8:                           out = sum of lanes * scale of x
//!                 sums += madd(w, x) * scale
//!         sums += mins * sums of x
//!     out = sum of lanes * scale of x
//! ```
//!
//! Sums within a run are exact. Runs are accumulated in f32 in an order that depends only on the length of a
//! row. Hence the bits of a result do not depend on the other rows and columns.
//!
//! `matmul` is shared by all types: it unpacks through [`RowFormat::unpack`].

use std::mem::MaybeUninit;

use super::integers::{I16Chunk, I16Header};
use super::pack::{IntFormat, RowChunk, RowFormat};
use super::streams::Streams;
use crate::layout::block::bytes_of;
use crate::layout::runs::{CHUNK, RUN, RUNS, Scales, Unpack};
use crate::simd::{IntSimd, Simd};

/// A matmul of integer weights by [`I16Chunk`] activations, possibly a part of a larger one.
///
/// Fields have the meaning of [`MatMul`](crate::MatMul). Invariants, checked in
/// [`matmul_with`](crate::matmul::matmul_with):
/// - `w` is valid for reads of `m` rows, `row_stride` bytes apart.
/// - `x` is valid for reads of `n` rows written by [`quantize_i16`](super::integers::quantize_i16),
///   `x_stride` bytes apart.
/// - `out` is valid for writes of `m` floats at each `j * out_stride`, `j < n`, and nothing else accesses
///   them.
/// - `k` is a whole number of blocks and of runs.
#[derive(Clone, Copy)]
pub(crate) struct IntProduct {
    pub w: *const u8,
    pub row_stride: usize,
    pub m: usize,
    pub k: usize,
    /// Rows written by [`quantize_i16`](super::integers::quantize_i16), `x_stride` bytes apart.
    pub x: *const u8,
    pub x_stride: usize,
    pub n: usize,
    pub out: *mut f32,
    pub out_stride: usize,
    /// Scratch memory of [`byte_tile_scratch`](super::byte_tiles::byte_tile_scratch) floats for int8 tiles,
    /// otherwise unused.
    pub scratch: *mut f32,
    /// See [`MatMul::reuse_prepared_x`](crate::MatMul::reuse_prepared_x).
    pub reuse_prepared_x: bool,
}

/// Rows multiplied at a time by one column, each part of its own memory stream.
pub(super) const STREAMS: usize = 4;

/// Rows multiplied at a time by several columns; the columns are read from the L2 cache once for all of them.
const COLUMN_STREAMS: usize = 8;

/// Maximum columns for which weights are unpacked once.
const COLUMNS: usize = 8;

/// Prefetch distance of each stream in bytes.
const PREFETCH_DISTANCE: usize = 1024;

const LINE: usize = 64;

/// Executes the body for each of the 8 runs of a chunk or registers of a run. With [`IntSimd::UNROLLED`], the
/// index is a constant.
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

/// Multiplies by one column. Weights are unpacked in registers and never stored.
///
/// # Safety
/// - The CPU supports `V`.
/// - `p` satisfies the invariants of [`IntProduct`].
#[inline(always)]
pub(crate) unsafe fn matvec<V: IntSimd, D: Unpack<V>>(p: &IntProduct) {
    let streams = Streams::<STREAMS>::new(p.m);
    let whole = p.k / CHUNK * CHUNK;
    let mut scales: [[Scales; 2]; STREAMS / 2] = Default::default();
    for i in 0..streams.n_steps() {
        // SAFETY: `streams.rows` yields rows below `m`, and `c + CHUNK <= k`.
        unsafe {
            let mut w = streams.rows(p.w, p.row_stride, i);
            let mut sums = [V::Float::splat(0.0); STREAMS];
            for c in (0..whole).step_by(CHUNK) {
                // Compute all scales first. Their latency is hidden by the work on other rows.
                for s in 0..STREAMS {
                    prefetch::<V, PREFETCH_DISTANCE>(w[s], bytes_of::<D>(CHUNK));
                    D::scales(w[s], RUNS, &mut scales[s / 2][s % 2]);
                }
                for s in (0..STREAMS).step_by(2) {
                    // Prevent the compiler from hoisting the loads of activations, which would spill
                    // registers.
                    let (scales, x) = std::hint::black_box((&scales[s / 2], chunk(p.x, c)));
                    [sums[s], sums[s + 1]] = add_chunks::<V, D>([w[s], w[s + 1]], scales, x, [sums[s], sums[s + 1]]);
                }
                w = w.map(|w| w.wrapping_add(bytes_of::<D>(CHUNK)));
            }
            finish::<V, D>(p, &streams, i, w, sums);
        }
    }
}

/// Adds the elements after the last whole chunk, located at `w`, to the sums of the rows of step `i`, and
/// writes the results.
///
/// # Safety
/// - The CPU supports `V`.
/// - `p` satisfies the invariants of [`IntProduct`], and `w` points to element `k / CHUNK * CHUNK` of each
///   row of the step.
#[inline(always)]
pub(super) unsafe fn finish<V: IntSimd, D: Unpack<V>>(
    p: &IntProduct,
    streams: &Streams<STREAMS>,
    i: usize,
    w: [*const u8; STREAMS],
    mut sums: [V::Float; STREAMS],
) {
    let whole = p.k / CHUNK * CHUNK;
    // SAFETY: the remaining runs end at `k`, and `streams.row(s, i) < m` for the streams that have a row.
    unsafe {
        // Blocks of a whole chunk leave no remainder, so no code for it is compiled.
        if const { D::TYPE.block_size() < CHUNK } && whole < p.k {
            for s in 0..STREAMS {
                sums[s] = add_tail::<V, D>(w[s], (p.k - whole) / RUN, chunk(p.x, whole), sums[s]);
            }
        }
        let totals = V::Float::sum4(sums);
        let scale = I16Header::scale_at(p.x);
        for (s, total) in totals.into_iter().enumerate().take(streams.len(i)) {
            *p.out.add(streams.row(s, i)) = scale * total;
        }
    }
}

/// Returns the chunk at element `c` of a row of activations.
///
/// # Safety
/// `x` points to a row of more than `c` activations.
#[inline(always)]
pub(super) unsafe fn chunk(x: *const u8, c: usize) -> *const I16Chunk {
    // SAFETY: the row has a chunk at `c` (function contract).
    unsafe { x.add(size_of::<I16Header>()).cast::<I16Chunk>().add(c / CHUNK) }
}

/// Adds the products of a whole chunk of two rows, which share the loads of activations.
///
/// # Safety
/// - The CPU supports `V`.
/// - `w` and `x` are valid for a whole chunk.
#[inline(always)]
unsafe fn add_chunks<V: IntSimd, D: Unpack<V>>(
    w: [*const u8; 2],
    scales: &[Scales; 2],
    x: *const I16Chunk,
    sums: [V::Float; 2],
) -> [V::Float; 2] {
    // SAFETY: `w` and `x` are valid for 8 runs (function contract).
    unsafe {
        // Two alternating sums per row hide the latency of additions.
        let mut first = [sums[0], times_mins::<V>(D::HAS_MINS, mins_of::<V, D>(&scales[0]), x)];
        let mut second = [sums[1], times_mins::<V>(D::HAS_MINS, mins_of::<V, D>(&scales[1]), x)];
        each_of_8!(V, i => {
            let x = activations::<V>(x, i);
            first = [
                first[1],
                add_run::<V>(widened::<V, D>(w[0], i), x, spread_scale::<V>(D::BY_16, &scales[0], i), first[0]),
            ];
            second = [
                second[1],
                add_run::<V>(widened::<V, D>(w[1], i), x, spread_scale::<V>(D::BY_16, &scales[1], i), second[0]),
            ];
        });
        [first[0].add(first[1]), second[0].add(second[1])]
    }
}

/// Adds the product of the first `runs` runs of a chunk to `sum`.
///
/// # Safety
/// - The CPU supports `V`.
/// - `w` and `x` are valid for `runs` runs.
#[inline(always)]
unsafe fn add_tail<V: IntSimd, D: Unpack<V>>(w: *const u8, runs: usize, x: *const I16Chunk, sum: V::Float) -> V::Float {
    let mut scales = Scales::default();
    // SAFETY: `w` and `x` are valid for `runs` runs (function contract).
    unsafe {
        D::scales(w, runs, &mut scales);
        let mut sums = [sum, times_mins::<V>(D::HAS_MINS, mins_of::<V, D>(&scales), x)];
        for i in 0..runs {
            let next = add_run::<V>(
                widened::<V, D>(w, i),
                activations::<V>(x, i),
                spread_scale::<V>(D::BY_16, &scales, i),
                sums[0],
            );
            sums = [sums[1], next];
        }
        sums[0].add(sums[1])
    }
}

/// Prefetches `bytes` bytes, a chunk's worth, `PREFETCH_DISTANCE` bytes after `w`.
///
/// # Safety
/// The CPU supports `V`.
#[inline(always)]
pub(super) unsafe fn prefetch<V: IntSimd, const PREFETCH_DISTANCE: usize>(w: *const u8, bytes: usize) {
    for line in 0..bytes.div_ceil(LINE) {
        // SAFETY: a prefetch may take any address.
        unsafe { V::prefetch(w.wrapping_add(PREFETCH_DISTANCE + line * LINE)) };
    }
}

/// Returns the integers of a run, widened to 16 bits.
///
/// # Safety
/// - The CPU supports `V`.
/// - `w` points to a chunk that has run `i`.
#[inline(always)]
unsafe fn widened<V: IntSimd, D: Unpack<V>>(w: *const u8, i: usize) -> [V; 2] {
    // SAFETY: `w` points to a chunk that has run `i` (function contract).
    let values = unsafe { D::values(w, i) };
    if D::SIGNED {
        values.widen_signed()
    } else {
        values.widen()
    }
}

/// Returns the scale of a run in the lanes of the sums it applies to.
///
/// # Safety
/// The CPU supports `V`.
#[inline(always)]
unsafe fn spread_scale<V: IntSimd>(by_16: bool, scales: &Scales, i: usize) -> V::Float {
    // SAFETY: the CPU supports `V` (function contract).
    unsafe {
        if by_16 {
            V::broadcast_halves(&scales.scales, i)
        } else {
            V::Float::splat(scales.scales[0][i])
        }
    }
}

/// Loads the activations of run `i`.
///
/// # Safety
/// - The CPU supports `V`.
/// - `x` is valid for reads.
#[inline(always)]
unsafe fn activations<V: IntSimd>(x: *const I16Chunk, i: usize) -> [V; 2] {
    // SAFETY: `values[i]` has 64 bytes, and `x` is valid for reads (function contract).
    unsafe {
        let x = (&raw const (*x).values[i]).cast::<u8>();
        [V::load(x), V::load(x.add(RUN))]
    }
}

/// Adds the product of a run. The low half of the lanes holds the sums of its first 16 elements.
#[inline(always)]
fn add_run<V: IntSimd>(w: [V; 2], x: [V; 2], scale: V::Float, sum: V::Float) -> V::Float {
    let products = w[0].multiply_pairs(x[0]).add32(w[1].multiply_pairs(x[1]));
    products.to_floats().mul_add(scale, sum)
}

/// Returns the minimums of both halves, which are the same array for types with one minimum per run.
#[inline(always)]
pub(super) fn mins_of<V: IntSimd, D: Unpack<V>>(scales: &Scales) -> [&[f32; RUNS]; 2] {
    [&scales.mins[0], &scales.mins[usize::from(D::BY_16)]]
}

/// Returns the minimums times the sums of the activations.
///
/// # Safety
/// - The CPU supports `V`.
/// - `x` is valid for reads.
#[inline(always)]
pub(super) unsafe fn times_mins<V: IntSimd>(has_mins: bool, mins: [&[f32; RUNS]; 2], x: *const I16Chunk) -> V::Float {
    // SAFETY: each array has 8 floats, and `x` is valid for reads (function contract).
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
    /// 16-bit integers in the order of [`I16Chunk::values`].
    values: [[[i16; RUN / 2]; 2]; RUNS],
    /// Scale of each lane of a run's sums.
    scales: [[f32; 8]; RUNS],
    mins: [[f32; RUNS]; 2],
    runs: usize,
    has_mins: bool,
}

/// Function that adds the products of an unpacked chunk to one register of sums per column. Columns are
/// `x_stride` bytes apart.
pub(crate) type AddColumns = unsafe fn(w: &Unpacked, x: *const I16Chunk, x_stride: usize, sums: *mut Sum);

/// A register's worth of floats, stored in memory.
#[derive(Clone, Copy)]
#[repr(C, align(32))]
pub(crate) struct Sum([f32; 8]);

/// Instantiations of [`add_columns`]; index `n - 1` is for `n` columns.
pub(crate) type ColumnKernels = [AddColumns];

/// Multiplies by several columns. Each chunk of a row is unpacked to memory once per [`COLUMNS`] columns.
///
/// # Safety
/// - The CPU supports `V`, and the weights have the format `format`.
/// - `p` satisfies the invariants of [`IntProduct`].
#[inline(always)]
pub(crate) unsafe fn matmul<V: IntSimd>(p: &IntProduct, columns: &ColumnKernels, format: &RowFormat) {
    let streams = Streams::new(p.m);
    let mut unpacked = [const { MaybeUninit::uninit() }; COLUMN_STREAMS];
    for j in (0..p.n).step_by(COLUMNS) {
        // SAFETY: columns `j..j + n` are below `p.n`, so `part` satisfies the invariants of `IntProduct`.
        unsafe {
            let part = IntProduct {
                x: p.x.add(j * p.x_stride),
                n: COLUMNS.min(p.n - j),
                out: p.out.add(j * p.out_stride),
                ..*p
            };
            for i in 0..streams.n_steps() {
                rows_times_columns::<V>(&part, &streams, i, columns, format, &mut unpacked);
            }
        }
    }
}

/// Multiplies the rows of one step of the streams by up to [`COLUMNS`] columns.
///
/// # Safety
/// - The CPU supports `V`, and the weights have the format `format`.
/// - `p` satisfies the invariants of [`IntProduct`], and `p.n <= COLUMNS`.
#[inline(always)]
unsafe fn rows_times_columns<V: IntSimd>(
    p: &IntProduct,
    streams: &Streams<COLUMN_STREAMS>,
    i: usize,
    columns: &ColumnKernels,
    format: &RowFormat,
    unpacked: &mut [MaybeUninit<Unpacked>; COLUMN_STREAMS],
) {
    let (n, w) = (streams.len(i), streams.rows(p.w, p.row_stride, i));
    let mut sums = [[Sum([0.0; 8]); COLUMNS]; COLUMN_STREAMS];
    let mut row = RowChunk::default();
    // SAFETY: rows are below `m`, chunks below `k`, and columns below `p.n`; `widen` initializes the chunks
    // before they are read.
    unsafe {
        for c in (0..p.k).step_by(CHUNK) {
            let runs = RUNS.min((p.k - c) / RUN);
            for s in 0..n {
                let w = w[s].add(c / CHUNK * format.chunk_bytes);
                prefetch::<V, PREFETCH_DISTANCE>(w, format.chunk_bytes);
                (format.unpack)(w, runs, &mut row);
                widen::<V>(&row, &format.integers, runs, unpacked[s].as_mut_ptr());
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

/// Widens the integers of the first `runs` runs of a chunk to 16 bits, and spreads its scales.
///
/// # Safety
/// - The CPU supports `V`.
/// - `to` is valid for writes.
#[inline(always)]
unsafe fn widen<V: IntSimd>(row: &RowChunk, integers: &IntFormat, runs: usize, to: *mut Unpacked) {
    let mins = &row.scales.mins;
    // SAFETY: the caller upholds the contract of `widen_runs`.
    unsafe {
        match (integers.by_16, integers.signed) {
            (false, false) => widen_runs::<V, false, false>(row, runs, to),
            (false, true) => widen_runs::<V, false, true>(row, runs, to),
            (true, false) => widen_runs::<V, true, false>(row, runs, to),
            (true, true) => widen_runs::<V, true, true>(row, runs, to),
        }
        (*to).mins = [mins[0], mins[usize::from(integers.by_16)]];
        (*to).runs = runs;
        (*to).has_mins = integers.has_mins;
    }
}

/// Widens the integers of the first `runs` runs of a chunk. `BY_16`: half runs have their own scales.
///
/// # Safety
/// - The CPU supports `V`.
/// - `to` is valid for writes.
#[inline(always)]
unsafe fn widen_runs<V: IntSimd, const BY_16: bool, const SIGNED: bool>(
    row: &RowChunk,
    runs: usize,
    to: *mut Unpacked,
) {
    each_of_8!(V, i => {
        if i < runs {
            // SAFETY: `values[i]` has 32 bytes, and `to` is valid for writes (function contract).
            unsafe {
                let values = V::load(row.values[i].as_ptr());
                let values = if SIGNED { values.widen_signed() } else { values.widen() };
                values[0].store((&raw mut (*to).values[i][0]).cast());
                values[1].store((&raw mut (*to).values[i][1]).cast());
                spread_scale::<V>(BY_16, &row.scales, i).store((&raw mut (*to).scales[i]).cast());
            }
        }
    });
}

/// Adds the products of an unpacked chunk with `N` columns, with the same floating-point operations as
/// [`add_chunks`].
///
/// # Safety
/// - The CPU supports `V`.
/// - `x` is valid for `N` chunks, `x_stride` bytes apart, and `to` for `N` sums.
#[inline(always)]
pub(crate) unsafe fn add_columns<V: IntSimd, const N: usize>(
    w: &Unpacked,
    x: *const I16Chunk,
    x_stride: usize,
    to: *mut Sum,
) {
    // SAFETY: `j < N` columns and sums are valid (function contract).
    unsafe {
        let mut columns = [x; N];
        let mut sums = [[V::Float::splat(0.0); 2]; N];
        for j in 0..N {
            columns[j] = x.byte_add(j * x_stride);
            let mins_product = times_mins::<V>(w.has_mins, [&w.mins[0], &w.mins[1]], columns[j]);
            sums[j] = [V::Float::load(to.add(j).cast()), mins_product];
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
